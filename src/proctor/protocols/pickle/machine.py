"""An interpreter for the pickle opcodes that LeRobot's messages use, with bounded work.

It counts opcodes, marks and text bytes while it reads. It never imports, and it calls only the
allowed functions of ``pickle_names``. Other opcodes are refused, also those of sets, which hash
their items.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor.errors import ProtocolError
from proctor.features import Array
from proctor.protocols.formats.msgpack_arrays import decode_array
from proctor.protocols.pickle.names import (
    STORAGE_CALL,
    AllowedGlobal,
    PendingObject,
    PendingRecord,
    StorageType,
    allowed_global,
)

_MAX_MARKS = 64
_MAX_LINE = 1024
_MAX_INT_BYTES = 16
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


class PickleMachine:
    """Interprets one pickle from ``place`` on."""

    def __init__(
        self,
        data: bytes,
        budget: Budget,
        place: int = 0,
        *,
        inner: bool = False,
        storage_of: Callable[[Any], Any] | None = None,
    ) -> None:
        self._data, self._budget, self.place = data, budget, place
        self._storage_of = storage_of or storage_type
        self._inner = inner
        """Whether this reads a tensor's storage, which may hold neither bytes nor a storage."""
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Interpret the pickle and return the object on top of its stack."""
        data, step = self._data, self._budget.step
        while True:
            step()
            opcode = data[self.place]
            self.place += 1
            if opcode == _STOP:
                return self._stack.pop()
            if opcode not in _DISPATCH:
                raise ProtocolError(
                    f"a pickle has the opcode {opcode:#04x}, which is not allowed",
                    code="protocol.refused-pickle",
                )
            do, detail = _DISPATCH[opcode]
            do(self, detail)

    def _constant(self, make: Callable[[], Any]) -> None:
        self._stack.append(make())

    def _number(self, form: str) -> None:
        self._stack.append(self._unpacked(form))

    def _text(self, form: str) -> None:
        size = self._unpacked(form)
        self._budget.charge_text(size)
        self._stack.append(self._take(size).decode("utf-8", "surrogatepass"))

    def _bytes(self, form: str) -> None:
        if self._inner:
            raise ProtocolError(
                "a tensor's storage holds bytes objects", code="protocol.refused-pickle"
            )
        self._stack.append(self._take(self._unpacked(form)))

    def _integer(self, form: str) -> None:
        size = self._unpacked(form)
        if size > _MAX_INT_BYTES:
            raise ProtocolError(f"a pickle has a number of {size} bytes", code="protocol.too-large")
        self._stack.append(int.from_bytes(self._take(size), "little", signed=True))

    def _small_tuple(self, size: int) -> None:
        items = self._stack[-size:]
        if len(items) < size:
            raise ProtocolError("a pickle pops from an empty stack", code="protocol.invalid-pickle")
        self._stack[-size:] = [tuple(items)]

    def _put(self, form: str) -> None:
        self._memo[self._unpacked(form)] = self._stack[-1]

    def _get(self, form: str) -> None:
        self._stack.append(self._memo[self._unpacked(form)])

    def _memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _skip(self, size: int) -> None:
        self._take(size)

    def _integer_line(self, booleans: bool) -> None:
        line = self._line()
        if booleans and line in (b"00", b"01"):
            self._stack.append(line == b"01")
            return
        number = int(line.removesuffix(b"L"))
        if number.bit_length() > 8 * _MAX_INT_BYTES:
            raise ProtocolError(
                f"a pickle has a number of {number.bit_length()} bits", code="protocol.too-large"
            )
        self._stack.append(number)

    def _float_line(self, _: Any) -> None:
        self._stack.append(float(self._line()))

    def _text_line(self, _: Any) -> None:
        line = self._line()
        self._budget.charge_text(len(line))
        self._stack.append(line.decode("raw-unicode-escape"))

    def _put_line(self, _: Any) -> None:
        self._memo[int(self._line())] = self._stack[-1]

    def _get_line(self, _: Any) -> None:
        self._stack.append(self._memo[int(self._line())])

    def _mark(self, _: Any) -> None:
        if len(self._marks) >= _MAX_MARKS:
            raise ProtocolError(
                f"a pickle is nested deeper than {_MAX_MARKS} marks", code="protocol.too-deep"
            )
        self._marks.append(self._stack)
        self._stack = []

    def _pop(self, _: Any) -> None:
        self._stack.pop()

    def _pop_mark(self, _: Any) -> None:
        self._since_mark()

    def _collect(self, make: Callable[[list[Any]], Any]) -> None:
        """Build a container from the items since the last mark."""
        items = self._since_mark()
        self._stack.append(make(items))

    def _append(self, several: bool) -> None:
        items = self._since_mark() if several else [self._stack.pop()]
        self._top(list).extend(items)

    def _set_items(self, several: bool) -> None:
        items = self._since_mark() if several else [self._stack.pop(-2), self._stack.pop()]
        self._top(dict).update(_pairs(items))

    def _global_line(self, _: Any) -> None:
        module, name = self._line().decode(), self._line().decode()
        self._stack.append(allowed_global(module, name))

    def _global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise ProtocolError(
                "a pickle names a global by something that is not a text",
                code="protocol.refused-pickle",
            )
        self._stack.append(allowed_global(module, name))

    def _reduce(self, _: Any) -> None:
        args, name = self._stack.pop(), self._stack.pop()
        self._stack.append(self._called(name, args))

    def _new_record(self, _: Any) -> None:
        _, made = self._stack.pop(), self._stack.pop()
        if not isinstance(made, AllowedGlobal) or made.record is None:
            raise ProtocolError(
                "a pickle creates an object of a class that is not allowed",
                code="protocol.refused-pickle",
            )
        self._stack.append(PendingRecord(made.record))

    def _build(self, _: Any) -> None:
        state = self._stack.pop()
        self._top(PendingObject).set_state(state)

    def _persistent(self, _: Any) -> None:
        self._stack.append(self._storage_of(self._stack.pop()))

    def _called(self, name: Any, args: Any) -> Any:
        """Call one of the allowed functions with ``args``."""
        if not isinstance(name, AllowedGlobal) or not isinstance(args, tuple):
            raise ProtocolError(
                "a pickle calls something that is not allowed", code="protocol.refused-pickle"
            )
        if name.machine_call is not None:
            return self._called_here(name.machine_call, args)
        if name.call is None:
            raise ProtocolError(
                "a pickle calls something that is not allowed", code="protocol.refused-pickle"
            )
        return name.call(*args)

    def _called_here(self, name: tuple[str, str], args: tuple[Any, ...]) -> Any:
        if name == STORAGE_CALL:
            if self._inner or len(args) != 1 or not isinstance(args[0], bytes):
                raise ProtocolError(
                    "a tensor's storage is not given as bytes", code="protocol.refused-pickle"
                )
            return _storage(args[0], self._budget)
        text, coding = (*args, "latin1")[:2]
        if not isinstance(text, str) or coding not in ("latin1", "latin-1"):
            raise ProtocolError(
                "a pickle encodes something that is not a text", code="protocol.refused-pickle"
            )
        self._budget.charge_text(len(text))
        return text.encode("latin-1", "replace")

    def _top(self, kind: type) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise ProtocolError(
                f"a pickle changes a {type(self._stack[-1]).__name__} as another type",
                code="protocol.invalid-pickle",
            )
        return self._stack[-1]

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marks.pop()
        return items

    def _take(self, size: int) -> bytes:
        if size < 0 or size > len(self._data) - self.place:
            raise ProtocolError("a pickle is truncated", code="protocol.invalid-pickle")
        self.place += size
        return self._data[self.place - size : self.place]

    def _unpacked(self, form: str) -> Any:
        return struct.unpack(form, self._take(_SIZES[form]))[0]

    def _line(self) -> bytes:
        ends = self._data.find(b"\n", self.place, self.place + _MAX_LINE)
        if ends < 0:
            raise ProtocolError(
                f"a pickle has a line of more than {_MAX_LINE} bytes", code="protocol.too-large"
            )
        line, self.place = self._data[self.place : ends], ends + 1
        return line


def _pairs(items: list[Any]) -> dict[str, Any]:
    """Return a dictionary from alternating keys and values; keys must be texts, cheap to hash."""
    if len(items) % 2 or not all(type(key) is str for key in items[::2]):
        raise ProtocolError(
            "a pickle has a dictionary with keys that are not texts", code="protocol.refused-pickle"
        )
    return dict(zip(items[::2], items[1::2], strict=True))


def storage_type(persistent_id: Any) -> StorageType:
    """Return the dtype of a storage from its persistent id."""
    is_tuple = isinstance(persistent_id, tuple) and len(persistent_id) > 1
    if is_tuple and isinstance(persistent_id[1], AllowedGlobal):
        kind = persistent_id[1].storage
        if kind is not None:
            return StorageType(kind)
    raise ProtocolError(
        "a pickle refers to an object outside of it", code="protocol.refused-pickle"
    )


def _storage(data: bytes, budget: Budget) -> Array:
    """Decode a storage in torch's legacy format: five pickles, a count and raw bytes."""
    place, found = 0, []
    for _ in range(5):
        machine = PickleMachine(data, budget, place, inner=True)
        found.append(machine.run())
        place = machine.place
    magic, numbers = found[0], found[3]
    if type(magic) is not int or magic != _LEGACY_MAGIC or not isinstance(numbers, StorageType):
        raise ProtocolError(
            "a tensor's storage has a format that is not supported", code="protocol.invalid-array"
        )
    rest = memoryview(data)[place + 8 :]
    dtype = np.dtype(numbers.dtype)
    if struct.unpack_from("<q", data, place)[0] * dtype.itemsize != len(rest):
        raise ProtocolError(
            "a tensor's storage does not have its declared length", code="protocol.invalid-array"
        )
    return decode_array(rest, numbers.dtype, (len(rest) // dtype.itemsize,))


_STOP = pickle.STOP[0]
_SIZES = {form: struct.calcsize(form) for form in ("<B", "<H", "<I", "<Q", "<i", ">d")}
_OPCODES: dict[bytes, tuple[Callable[[PickleMachine, Any], None], Any]] = {
    pickle.NONE: (PickleMachine._constant, lambda: None),
    pickle.NEWTRUE: (PickleMachine._constant, lambda: True),
    pickle.NEWFALSE: (PickleMachine._constant, lambda: False),
    pickle.EMPTY_LIST: (PickleMachine._constant, list),
    pickle.EMPTY_DICT: (PickleMachine._constant, dict),
    pickle.EMPTY_TUPLE: (PickleMachine._constant, tuple),
    pickle.BININT: (PickleMachine._number, "<i"),
    pickle.BININT1: (PickleMachine._number, "<B"),
    pickle.BININT2: (PickleMachine._number, "<H"),
    pickle.BINFLOAT: (PickleMachine._number, ">d"),
    pickle.LONG1: (PickleMachine._integer, "<B"),
    pickle.LONG4: (PickleMachine._integer, "<i"),
    pickle.SHORT_BINUNICODE: (PickleMachine._text, "<B"),
    pickle.BINUNICODE: (PickleMachine._text, "<I"),
    pickle.BINUNICODE8: (PickleMachine._text, "<Q"),
    pickle.SHORT_BINBYTES: (PickleMachine._bytes, "<B"),
    pickle.BINBYTES: (PickleMachine._bytes, "<I"),
    pickle.BINBYTES8: (PickleMachine._bytes, "<Q"),
    pickle.BYTEARRAY8: (PickleMachine._bytes, "<Q"),
    pickle.TUPLE1: (PickleMachine._small_tuple, 1),
    pickle.TUPLE2: (PickleMachine._small_tuple, 2),
    pickle.TUPLE3: (PickleMachine._small_tuple, 3),
    pickle.BINPUT: (PickleMachine._put, "<B"),
    pickle.LONG_BINPUT: (PickleMachine._put, "<I"),
    pickle.BINGET: (PickleMachine._get, "<B"),
    pickle.LONG_BINGET: (PickleMachine._get, "<I"),
    pickle.MEMOIZE: (PickleMachine._memoize, None),
    pickle.PROTO: (PickleMachine._skip, 1),
    pickle.FRAME: (PickleMachine._skip, 8),
    pickle.INT: (PickleMachine._integer_line, True),
    pickle.LONG: (PickleMachine._integer_line, False),
    pickle.FLOAT: (PickleMachine._float_line, None),
    pickle.UNICODE: (PickleMachine._text_line, None),
    pickle.PUT: (PickleMachine._put_line, None),
    pickle.GET: (PickleMachine._get_line, None),
    pickle.MARK: (PickleMachine._mark, None),
    pickle.POP: (PickleMachine._pop, None),
    pickle.POP_MARK: (PickleMachine._pop_mark, None),
    pickle.TUPLE: (PickleMachine._collect, tuple),
    pickle.LIST: (PickleMachine._collect, list),
    pickle.DICT: (PickleMachine._collect, _pairs),
    pickle.APPEND: (PickleMachine._append, False),
    pickle.APPENDS: (PickleMachine._append, True),
    pickle.SETITEM: (PickleMachine._set_items, False),
    pickle.SETITEMS: (PickleMachine._set_items, True),
    pickle.GLOBAL: (PickleMachine._global_line, None),
    pickle.STACK_GLOBAL: (PickleMachine._global, None),
    pickle.REDUCE: (PickleMachine._reduce, None),
    pickle.NEWOBJ: (PickleMachine._new_record, None),
    pickle.BUILD: (PickleMachine._build, None),
    pickle.BINPERSID: (PickleMachine._persistent, None),
}
_DISPATCH = {opcode[0]: does for opcode, does in _OPCODES.items()}


@dataclass
class Budget:
    """The remaining work for one message."""

    steps: int = 40_000
    """Opcodes, including storages inside the message. A tensor takes about 90."""
    text: int = 2**18
    """Bytes of text."""
    nodes: int = 10_000
    """Objects of the result; a shared object counts at each occurrence."""

    def step(self) -> None:
        """Count one opcode."""
        self.steps -= 1
        if self.steps < 0:
            raise ProtocolError("a pickle has too many opcodes", code="protocol.too-large")

    def charge_text(self, size: int) -> None:
        """Count the bytes of a text before it is decoded."""
        self.text -= size
        if self.text < 0:
            raise ProtocolError("a pickle has too much text", code="protocol.too-large")

    def node(self) -> None:
        """Count one object of the result."""
        self.nodes -= 1
        if self.nodes < 0:
            raise ProtocolError("a pickle holds too many objects", code="protocol.too-large")
