"""Pickles of LeRobot's, read without running anything of them.

A pickle is a program. This reader knows the few names that observations and actions are made of,
and each stands for a record of ours: no module is imported, nothing that was sent is called, and
what arrays claim to be is held against the bytes that came. Everything else is refused.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from proctor.errors import WireError
from proctor.features import Array
from proctor.wire.packing import array_of, bad_frame, shown

_MOST_NODES = 20_000
_RECORDS = ("TimedObservation", "TimedAction", "RemotePolicyConfig")
_STORAGES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ByteStorage": "<u1",
    "BoolStorage": "<b1",
}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


@dataclass
class Record:
    """An object of LeRobot's: the name of its class and its fields."""

    kind: str
    fields: Mapping[str, Any]


class _Shell:
    """What a name in a pickle stands for while it is read."""

    def set(self, state: Any) -> None:
        """Take the state that the pickle gives it."""
        raise WireError("a pickle gives a state to what has none")

    def value(self) -> Any:
        """Return what it has become."""
        raise WireError("a pickle leaves something unfinished")


class _RecordShell(_Shell):
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.state: dict[str, Any] = {}

    def set(self, state: Any) -> None:
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
            raise WireError(f"a {self.kind} has no fields")
        self.state = state

    def value(self) -> Record:
        return Record(self.kind, self.state)


class _Dtype(_Shell):
    def __init__(self, *args: Any) -> None:
        self.name = args[0] if args else None

    def set(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        if order in ("<", ">") and isinstance(self.name, str):
            self.name = order + self.name.lstrip("<>=|")


class _ArrayShell(_Shell):
    def __init__(self, *args: Any) -> None:
        self.array: Array | None = None

    def set(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise WireError("an array has no state")
        _, shape, dtype, fortran, data = state
        self.array = _array(data, dtype, shape, fortran=bool(fortran))

    def value(self) -> Array:
        if self.array is None:
            raise WireError("an array has no numbers")
        return self.array


def _array(data: Any, dtype: Any, shape: Any, *, fortran: bool = False) -> Array:
    named = dtype.name if isinstance(dtype, _Dtype) else dtype
    if isinstance(shape, int):
        shape = (shape,)
    if fortran and isinstance(shape, tuple | list):
        return array_of(data, named, tuple(reversed(shape))).T
    return array_of(data, named, shape)


def _scalar(dtype: Any, data: Any = b"") -> Array:
    return _array(data, dtype, ())


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any = "C") -> Array:
    return _array(data, dtype, shape, fortran=order == "F")


def _latin1(text: Any, coding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or coding not in ("latin1", "latin-1"):
        raise WireError("a pickle encodes what is no text")
    return text.encode("latin-1", "replace")


def _storage(data: Any) -> Array:
    """Return the numbers in what torch writes of a storage: five pickles, a count, raw bytes."""
    if not isinstance(data, bytes):
        raise WireError("a tensor's storage is no bytes")
    file = io.BytesIO(data)
    if _Reader(file).load() != _LEGACY_MAGIC:
        raise WireError("a tensor's storage is of a kind that is not read")
    _Reader(file).load()
    _Reader(file).load()
    numbers, _ = _Reader(file).load(), _Reader(file).load()
    if not isinstance(numbers, _Storage):
        raise WireError("a tensor's storage is of a kind that is not read")
    head = file.read(8)
    rest = file.read()
    dtype = np.dtype(numbers.dtype)
    if len(head) != 8 or struct.unpack("<q", head)[0] * dtype.itemsize != len(rest):
        raise WireError("a tensor's storage is not as long as it says")
    return array_of(rest, numbers.dtype, (len(rest) // dtype.itemsize,))


@dataclass(frozen=True)
class _Storage(_Shell):
    """Which numbers a storage holds: all that its pickle says."""

    dtype: str


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Array:
    """Return a tensor's numbers; what does not lie one after the other is not read."""
    if not isinstance(storage, np.ndarray) or not isinstance(offset, int) or offset < 0:
        raise WireError("a tensor has no storage")
    sides = size if isinstance(size, tuple) else ()
    if not all(type(side) is int and 0 <= side <= storage.size for side in sides):
        raise WireError(f"{shown(size)} is no shape of a tensor")
    count = int(np.prod([float(side) for side in sides])) if sides else 1
    dense = tuple(int(np.prod(sides[axis + 1 :])) for axis in range(len(sides)))
    if count > 1 and tuple(stride) != dense:
        raise WireError("a tensor whose numbers do not lie one after the other is not read")
    if offset + count > storage.size:
        raise WireError("a tensor is larger than its storage")
    return storage[offset : offset + count].reshape(sides)


_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy._core.multiarray", "_reconstruct"): _ArrayShell,
    ("numpy.core.multiarray", "_reconstruct"): _ArrayShell,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("_codecs", "encode"): _latin1,
    ("collections", "OrderedDict"): lambda *args: {},
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch.storage", "_load_from_bytes"): _storage,
}


@dataclass(frozen=True)
class _Name:
    """A name in a pickle that may be called, or made an object of."""

    call: Callable[..., Any] | None = None
    record: str | None = None
    storage: str | None = None


def _named(module: str, name: str) -> _Name:
    if module.partition(".")[0] == "lerobot" and name in _RECORDS:
        return _Name(record=name)
    if (module, name) in _CALLS:
        return _Name(call=_CALLS[module, name])
    if module == "torch" and name in _STORAGES:
        return _Name(storage=_STORAGES[name])
    if (module, name) == ("numpy", "ndarray"):
        return _Name()
    raise WireError(f"a pickle asks for {module}.{name}, which is refused")


class _Reader(pickle._Unpickler):
    """Python's own reader, in Python (its memory grows with what came, not with what is claimed).

    Of what can call, make or change something, only the four below are left.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    read: Callable[[int], bytes]
    append: Callable[[Any], None]

    def find_class(self, module: str, name: str) -> _Name:
        """Return what a name stands for."""
        return _named(module, name)

    def persistent_load(self, told: Any) -> _Storage:
        """Return which numbers a storage holds."""
        if isinstance(told, tuple) and len(told) > 1 and isinstance(told[1], _Name):
            kind = told[1].storage
            if kind is not None:
                return _Storage(kind)
        raise WireError("a pickle points to what is not in it")

    def load_reduce(self) -> None:
        """Call one of ours."""
        args = self.stack.pop()
        name = self.stack[-1]
        if not isinstance(name, _Name) or name.call is None or not isinstance(args, tuple):
            raise WireError("a pickle calls what is refused")
        try:
            self.stack[-1] = name.call(*args)
        except TypeError as error:
            raise WireError(f"a pickle calls something wrongly ({error})") from None

    def load_newobj(self) -> None:
        """Make a record."""
        self.stack.pop()
        name = self.stack[-1]
        if not isinstance(name, _Name) or name.record is None:
            raise WireError("a pickle makes an object of what is refused")
        self.stack[-1] = _RecordShell(name.record)

    def load_build(self) -> None:
        """Give a state to what is being made."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Shell):
            raise WireError("a pickle gives a state to what has none")
        self.stack[-1].set(state)

    def load_bytes(self) -> None:
        """Take bytes as they are, in place of an array of bytes that is reserved first."""
        size = struct.unpack("<Q", self.read(8))[0]
        self.append(self.read(min(size, 2**62)))

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = load_bytes
    for _refused in (
        *(pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4),
        *(pickle.PERSID, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
    ):
        dispatch.pop(_refused[0], None)


def load(frame: bytes) -> Any:
    """Return what a pickle holds, of plain values, arrays and LeRobot's records.

    Raises:
        WireError: it holds anything else, or is none.
    """
    try:
        return _finished(_Reader(io.BytesIO(frame)).load(), [_MOST_NODES])
    except WireError as error:
        raise bad_frame(str(error), frame) from None
    except Exception as error:  # noqa: BLE001  whatever a broken program makes its reader do
        said = f"it is no pickle ({type(error).__name__}: {error})"
        raise bad_frame(said, frame) from None


def _finished(value: Any, left: list[int]) -> Any:
    """Return a value with everything in it made; one that refers to itself never ends, and is no
    value."""
    left[0] -= 1
    if left[0] < 0:
        raise WireError("a pickle holds too many things")
    if isinstance(value, _Shell):
        value = value.value()
    if isinstance(value, Record):
        return Record(value.kind, {k: _finished(v, left) for k, v in value.fields.items()})
    if isinstance(value, dict):
        return {_finished(k, left): _finished(v, left) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finished(item, left) for item in value]
    if value is None or isinstance(value, bool | int | float | str | bytes | np.ndarray):
        return value
    raise WireError(f"a pickle holds a {type(value).__name__}")
