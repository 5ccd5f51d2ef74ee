"""Bounded, linear scan of MessagePack that checks size and nesting before decoding.

The scan builds no objects. It keeps one counter for each open container, at most ``depth``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from proctor.errors import ProtocolError


@dataclass(frozen=True)
class ScanLimits:
    """Limits of a message that is decoded."""

    values: int = 10_000
    """Keys and values together."""
    depth: int = 32
    text_bytes: int = 2**18
    """Sum over all texts. One wide character makes Python use four bytes for each of its text."""


LIMITS = ScanLimits()


class ValueKind(Enum):
    """Kinds of values that the scan distinguishes."""

    SCALAR = "scalar"
    TEXT = "text"
    BINARY = "binary"
    EXTENSION = "extension"
    ARRAY = "array"
    MAP = "map"


_SCALAR, _TEXT, _BINARY, _ARRAY, _MAP = (
    ValueKind.SCALAR,
    ValueKind.TEXT,
    ValueKind.BINARY,
    ValueKind.ARRAY,
    ValueKind.MAP,
)
"""Module-level aliases, since looking up enum members dominates the scan's time."""
_SIZED = {
    0xD9: (ValueKind.TEXT, 1), 0xDA: (ValueKind.TEXT, 2), 0xDB: (ValueKind.TEXT, 4),
    0xC4: (ValueKind.BINARY, 1), 0xC5: (ValueKind.BINARY, 2), 0xC6: (ValueKind.BINARY, 4),
    0xC7: (ValueKind.EXTENSION, 1), 0xC8: (ValueKind.EXTENSION, 2), 0xC9: (ValueKind.EXTENSION, 4),
    0xDC: (ValueKind.ARRAY, 2), 0xDD: (ValueKind.ARRAY, 4),
    0xDE: (ValueKind.MAP, 2), 0xDF: (ValueKind.MAP, 4),
}  # fmt: skip
"""By first byte, values with a length field: kind, and size of the length field in bytes."""
_FIXED = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8,
    0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
"""By first byte, scalars and short extensions: number of bytes that follow."""


def _head(first: int) -> tuple[ValueKind | None, int, int]:
    """Return the kind, the size and the bytes of the length field of a value, by its first byte."""
    if first < 0x80 or first >= 0xE0:
        return ValueKind.SCALAR, 0, 0
    if first < 0xC0:
        kind = (
            ValueKind.MAP if first < 0x90 else ValueKind.ARRAY if first < 0xA0 else ValueKind.TEXT
        )
        return kind, first & (0x1F if kind is ValueKind.TEXT else 0x0F), 0
    if first in _SIZED:
        sized, size_bytes = _SIZED[first]
        return (
            sized,
            int(sized is ValueKind.EXTENSION),
            size_bytes,
        )  # one byte for the extension's type
    if first in _FIXED:
        return ValueKind.SCALAR, _FIXED[first], 0
    return None, 0, 0


_HEADS = [_head(first) for first in range(256)]


class Scan:
    """Reads values from ``place`` on. The limits apply to all values of one scan together."""

    def __init__(self, frame: bytes | memoryview, limits: ScanLimits = LIMITS) -> None:
        self.frame, self.place, self._size = frame, 0, len(frame)
        self._limits = limits
        self._values, self._text = limits.values, limits.text_bytes

    def head(self) -> tuple[ValueKind, int]:
        """Read the head of a value; return its kind and its length in bytes, entries or items."""
        frame, place = self.frame, self.place
        if place >= self._size:
            raise ProtocolError("invalid MessagePack (truncated)", code="protocol.invalid-msgpack")
        kind, size, size_bytes = _HEADS[frame[place]]
        place += 1
        if size_bytes:
            size += int.from_bytes(frame[place : place + size_bytes], "big")
            place += size_bytes
        self.place = place
        self._values -= 1
        if self._values < 0:
            raise ProtocolError(
                f"the message has more than {self._limits.values} values", code="protocol.too-large"
            )
        if (2 * size if kind is _MAP else size) > self._size - place:
            raise ProtocolError("invalid MessagePack (truncated)", code="protocol.invalid-msgpack")
        if kind is _TEXT:
            self._text -= size
            if self._text < 0:
                raise ProtocolError(
                    f"the message has more than {self._limits.text_bytes} bytes of text",
                    code="protocol.too-large",
                )
        elif kind is None:
            raise ProtocolError(
                f"invalid MessagePack (no value begins with {frame[place - 1]:#04x})",
                code="protocol.invalid-msgpack",
            )
        return kind, size

    def skip(self) -> None:
        """Skip one value with everything in it."""
        outer: list[tuple[int, bool]] = []
        left, is_map, head = 1, False, self.head
        while True:
            while not left:
                if not outer:
                    return
                left, is_map = outer.pop()
            is_key = is_map and not left & 1
            left -= 1
            kind, size = head()
            if kind is _SCALAR:
                if is_key:
                    raise ProtocolError(
                        "a map's key is neither text nor bytes", code="protocol.wrong-type"
                    )
                self.place += size
            elif kind is _TEXT or kind is _BINARY:
                self.place += size
            elif is_key:
                raise ProtocolError(
                    "a map's key is neither text nor bytes", code="protocol.wrong-type"
                )
            elif kind is _MAP or kind is _ARRAY:
                outer.append((left, is_map))
                if len(outer) > self._limits.depth:
                    raise ProtocolError(
                        f"the message is nested deeper than {self._limits.depth} levels",
                        code="protocol.too-deep",
                    )
                is_map = kind is _MAP
                left = 2 * size if is_map else size
            else:
                self.place += size

    def text(self, what: str, longest: int) -> str | None:
        """Read a text of at most ``longest`` bytes; return None for nil."""
        if self.frame[self.place : self.place + 1] == b"\xc0":
            self.skip()
            return None
        kind, size = self.head()
        if kind is not ValueKind.TEXT or size > longest:
            raise ProtocolError(
                f"{what} is not a text of at most {longest} bytes", code="protocol.wrong-type"
            )
        begins, self.place = self.place, self.place + size
        try:
            return bytes(self.frame[begins : self.place]).decode()
        except UnicodeDecodeError:
            raise ProtocolError(f"{what} is not UTF-8", code="protocol.wrong-type") from None

    def end(self) -> None:
        """Check that the frame ends here."""
        if self.place != len(self.frame):
            raise ProtocolError(
                "invalid MessagePack (bytes after its end)", code="protocol.invalid-msgpack"
            )


def check_bounds(frame: bytes | memoryview, limits: ScanLimits = LIMITS) -> None:
    """Check that a frame is one MessagePack value within the limits."""
    scan = Scan(frame, limits)
    scan.skip()
    scan.end()
