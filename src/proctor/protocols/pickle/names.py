"""The globals that LeRobot's pickles may name, and the safe stand-ins for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor.errors import ProtocolError
from proctor.features import Array
from proctor.protocols.formats.msgpack_arrays import decode_array, short_repr

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
STORAGE_NAMES = {dtype: name for name, dtype in _STORAGES.items()}
_MAX_AXES = 8
_MAX_SIDE = 2**31 - 1
STORAGE_CALL = ("torch.storage", "_load_from_bytes")
"""Handled by the interpreter itself, since its argument is a series of pickles."""
TEXT_CALL = ("_codecs", "encode")
"""Pickles before protocol 3 encode bytes by this call."""


@dataclass
class Record:
    """A LeRobot object: the name of its class, and its fields."""

    kind: str
    fields: Mapping[str, Any]


class PendingObject:
    """Stand-in for an object of a pickle until its state is known."""

    def set_state(self, state: Any) -> None:
        """Set the state from the pickle's BUILD opcode."""
        raise ProtocolError(
            "a pickle sets the state of an object that has none", code="protocol.invalid-pickle"
        )

    def value(self) -> Any:
        """Return the finished object."""
        raise ProtocolError("a pickle leaves an object unfinished", code="protocol.invalid-pickle")


class PendingRecord(PendingObject):
    """A record whose fields are not known yet."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.state: dict[str, Any] = {}

    def set_state(self, state: Any) -> None:
        """Set the fields."""
        if not isinstance(state, dict):
            raise ProtocolError(f"a {self.kind} has no fields", code="protocol.missing-field")
        self.state = state

    def value(self) -> Record:
        """Return the record."""
        return Record(self.kind, self.state)


class _Dtype(PendingObject):
    def __init__(self, *args: Any) -> None:
        self.name = args[0] if args else None

    def set_state(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        if order in ("<", ">") and isinstance(self.name, str):
            self.name = order + self.name.lstrip("<>=|")


class _ArrayShell(PendingObject):
    def __init__(self, *args: Any) -> None:
        self.array: Array | None = None

    def set_state(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise ProtocolError("an array has no state", code="protocol.invalid-array")
        _, shape, dtype, fortran, data = state
        self.array = _array(data, dtype, shape, fortran=fortran is True)

    def value(self) -> Array:
        if self.array is None:
            raise ProtocolError("an array has no data", code="protocol.invalid-array")
        return self.array


@dataclass(frozen=True)
class StorageType(PendingObject):
    """The dtype of a tensor's storage."""

    dtype: str


def _array(data: Any, dtype: Any, shape: Any, *, fortran: bool = False) -> Array:
    named = dtype.name if isinstance(dtype, _Dtype) else dtype
    if isinstance(shape, int):
        shape = (shape,)
    if fortran and isinstance(shape, tuple | list):
        return decode_array(data, named, tuple(reversed(shape))).T
    return decode_array(data, named, shape)


def _scalar(dtype: Any, data: Any = b"") -> Array:
    return _array(data, dtype, ())


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any = "C") -> Array:
    return _array(data, dtype, shape, fortran=order == "F")


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Array:
    """Return a tensor as a view of its storage."""
    if not isinstance(storage, np.ndarray):
        raise ProtocolError("a tensor has no storage", code="protocol.invalid-array")
    sides = size if isinstance(size, tuple) else ()
    strides = stride if isinstance(stride, tuple) else ()
    numbers = (*sides, *strides, offset)
    if (
        len(sides) != len(strides)
        or len(sides) > _MAX_AXES
        or not all(_is_side(number, _MAX_SIDE) for number in numbers)
    ):
        raise ProtocolError(
            f"{short_repr(size)} is not a tensor shape", code="protocol.invalid-array"
        )
    count = math.prod(sides)
    reach = offset + sum((n - 1) * s for n, s in zip(sides, strides, strict=True)) + 1
    if count > storage.size or (count and reach > storage.size):  # also refuses expanded tensors
        raise ProtocolError("a tensor is larger than its storage", code="protocol.invalid-array")
    if not count:
        return np.zeros(sides, storage.dtype)
    in_bytes = [s * storage.itemsize if n > 1 else 0 for n, s in zip(sides, strides, strict=True)]
    return np.lib.stride_tricks.as_strided(storage[offset:], sides, in_bytes, writeable=False)


def _is_side(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy._core.multiarray", "_reconstruct"): _ArrayShell,
    ("numpy.core.multiarray", "_reconstruct"): _ArrayShell,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("collections", "OrderedDict"): lambda *args: {},
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
}


@dataclass(frozen=True)
class AllowedGlobal:
    """A global that a pickle may name: a function, a record class or a storage class."""

    call: Callable[..., Any] | None = None
    machine_call: tuple[str, str] | None = None
    """A call that the interpreter handles itself, since it holds the budget."""
    record: str | None = None
    storage: str | None = None


def allowed_global(module: str, name: str) -> AllowedGlobal:
    """Return the stand-in for a global."""
    if module.partition(".")[0] == "lerobot" and name in _RECORDS:
        return AllowedGlobal(record=name)
    if (module, name) in _CALLS:
        return AllowedGlobal(call=_CALLS[module, name])
    if (module, name) in (STORAGE_CALL, TEXT_CALL):
        return AllowedGlobal(machine_call=(module, name))
    if module == "torch" and name in _STORAGES:
        return AllowedGlobal(storage=_STORAGES[name])
    if (module, name) == ("numpy", "ndarray"):
        return AllowedGlobal()
    raise ProtocolError(
        f"a pickle names {module}.{name}, which is not allowed", code="protocol.refused-pickle"
    )
