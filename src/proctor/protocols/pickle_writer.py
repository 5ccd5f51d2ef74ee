"""Writer of pickles for LeRobot's clients and servers, without LeRobot and torch.

Python's own pickler imports a class before it writes its name; these modules may be missing here.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor.features import Array
from proctor.protocols.msgpack_arrays import raw_bytes
from proctor.protocols.pickle_names import Record

_HELPERS = "lerobot.async_inference.helpers"


@dataclass(frozen=True)
class Tensor:
    """An array that LeRobot shall load as a torch tensor of float32."""

    values: Array


def dump(value: Any) -> bytes:
    """Encode plain values, arrays, tensors and records as a pickle that LeRobot can load."""
    out = bytearray(b"\x80\x03")
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
        case list() | tuple():
            _write_several(pickle.MARK, value, out)
            out += pickle.LIST if isinstance(value, list) else pickle.TUPLE
        case dict():
            _write_several(pickle.MARK, [x for item in value.items() for x in item], out)
            out += pickle.DICT
        case Record():
            _write_name(_HELPERS, value.kind, out)
            out += pickle.EMPTY_TUPLE + pickle.NEWOBJ
            _write(dict(value.fields), out)
            out += pickle.BUILD
        case Tensor():
            _write_name("torch", "tensor", out)
            _write((np.asarray(value.values, np.float32).tolist(),), out)
            out += pickle.REDUCE
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
