"""Writer of pickles for LeRobot's clients and servers, without LeRobot and torch.

Python's own pickler imports a class before it writes its name; these modules may be missing here.
"""

from __future__ import annotations

import math
import pickle
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor.features import Array
from proctor.protocols.formats.msgpack_arrays import raw_bytes
from proctor.protocols.pickle.names import STORAGE_NAMES, Record

_HELPERS = "lerobot.async_inference.helpers"


@dataclass(frozen=True)
class Tensor:
    """An array that LeRobot shall load as a torch tensor of float32."""

    values: Array


@dataclass(frozen=True)
class ArchiveTensor:
    """A tensor of torch's archive: the whole storage ``key``, in C order."""

    key: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def dump(value: Any, protocol: int = 3) -> bytes:
    """Encode plain values, arrays, tensors and records as a pickle that LeRobot can load.

    Torch's own reader (``weights_only``) wants protocol 2 and the opcodes of ArchiveTensor.
    """
    out = bytearray(pickle.PROTO + bytes([protocol]))
    _write(value, out)
    out += pickle.STOP
    return bytes(out)


def _write(value: Any, out: bytearray) -> None:
    """Append the opcodes that push ``value``."""
    match value:
        case None | bool():
            out += {None: pickle.NONE, True: pickle.NEWTRUE, False: pickle.NEWFALSE}[value]
        case int():
            size = (value.bit_length() >> 3) + 1
            out += pickle.LONG1 + bytes([size]) + value.to_bytes(size, "little", signed=True)
        case float():
            out += pickle.BINFLOAT + struct.pack(">d", value)
        case str():
            coded = value.encode("utf-8", "surrogatepass")
            out += pickle.BINUNICODE + struct.pack("<I", len(coded)) + coded
        case bytes() | memoryview():
            out += pickle.BINBYTES + struct.pack("<I", len(value)) + value
        case tuple():
            _write_several(pickle.MARK, value, out)
            out += pickle.TUPLE
        case list():
            _write_several(pickle.EMPTY_LIST + pickle.MARK, value, out)
            out += pickle.APPENDS
        case dict():
            items = [x for item in value.items() for x in item]
            _write_several(pickle.EMPTY_DICT + pickle.MARK, items, out)
            out += pickle.SETITEMS
        case Record():
            _write_name(_HELPERS, value.kind, out)
            out += pickle.EMPTY_TUPLE + pickle.NEWOBJ
            _write(dict(value.fields), out)
            out += pickle.BUILD
        case Tensor():
            _write_name("torch", "tensor", out)
            _write((np.asarray(value.values, np.float32).tolist(),), out)
            out += pickle.REDUCE
        case ArchiveTensor():
            _write_archive_tensor(value, out)
        case np.ndarray():
            _write_array(value, out)
        case _:
            raise TypeError(f"a {type(value).__name__} cannot be pickled here")


def _write_several(before: bytes, values: Any, out: bytearray) -> None:
    out += before
    for value in values:
        _write(value, out)


def _write_name(module: str, name: str, out: bytearray) -> None:
    out += pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _write_archive_tensor(tensor: ArchiveTensor, out: bytearray) -> None:
    """Append the call that torch's archives have for a tensor."""
    strides = tuple(math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape)))
    _write_name("torch._utils", "_rebuild_tensor_v2", out)
    out += pickle.MARK + pickle.MARK
    _write("storage", out)
    _write_name("torch", STORAGE_NAMES[tensor.dtype.newbyteorder("<").str.replace("|", "<")], out)
    _write_several(b"", (tensor.key, "cpu", math.prod(tensor.shape)), out)
    out += pickle.TUPLE + pickle.BINPERSID
    _write_several(b"", (0, tensor.shape, strides, False), out)
    _write_name("collections", "OrderedDict", out)
    out += pickle.EMPTY_TUPLE + pickle.REDUCE + pickle.TUPLE + pickle.REDUCE


def _write_array(values: Array, out: bytearray) -> None:
    """Append the opcodes of an array, which numpy of any version can load."""
    _write_name("numpy.core.multiarray", "_reconstruct", out)
    out += pickle.MARK
    _write_name("numpy", "ndarray", out)
    _write((0,), out)
    _write(b"b", out)
    out += pickle.TUPLE + pickle.REDUCE + pickle.MARK
    _write(1, out)
    _write(values.shape, out)
    _write_name("numpy", "dtype", out)
    _write((values.dtype.str, False, True), out)
    out += pickle.REDUCE
    _write(False, out)
    _write(raw_bytes(values), out)
    out += pickle.TUPLE + pickle.BUILD
