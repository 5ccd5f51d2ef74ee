"""Protocol buffers, as far as LeRobot's messages need them, and the chunks of its gRPC streams.

A message has integers and bytes by field. A payload is sent in messages of at most 2 MiB,
{1: transfer state, 2: data}. The last chunk has the state END, the first of several BEGIN, the
others MIDDLE. A payload of one chunk is a single END; an empty payload is not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from proctor.errors import ProtocolError
from proctor.protocols.formats.msgpack_arrays import bad_frame

_MAX_FIELDS = 32


def encode_fields(fields: Mapping[int, int | bytes]) -> bytes:
    """Encode integers and bytes, by field number, as a message."""
    out = bytearray()
    for number, value in fields.items():
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            out += _varint(number << 3 | 2) + _varint(len(value)) + value
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def decode_fields(frame: bytes) -> dict[int, int | bytes]:
    """Decode a message's integers and bytes by field number; a repeated field keeps the last."""
    found: dict[int, int | bytes] = {}
    place = 0
    for _ in range(_MAX_FIELDS):
        if place >= len(frame):
            return found
        key, place = _read_varint(frame, place)
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value, place = _read_varint(frame, place)
        elif kind in (1, 2, 5):
            size = 8 if kind == 1 else 4
            if kind == 2:
                size, place = _read_varint(frame, place)
            if size > len(frame) - place:
                raise bad_frame("the message is truncated", frame, code="protocol.invalid-protobuf")
            value, place = frame[place : place + size], place + size
        else:
            raise bad_frame(
                "invalid protocol buffers message", frame, code="protocol.invalid-protobuf"
            )
        found[key >> 3] = value
    if place < len(frame):
        raise bad_frame(
            f"the message has more than {_MAX_FIELDS} fields", frame, code="protocol.too-large"
        )
    return found


def _read_varint(frame: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if place >= len(frame):
            raise bad_frame("the message is truncated", frame, code="protocol.invalid-protobuf")
        byte = frame[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise bad_frame("invalid protocol buffers message", frame, code="protocol.invalid-protobuf")


CHUNK_BYTES = 2 * 2**20
MAX_MESSAGE_BYTES = 2 * CHUNK_BYTES
"""LeRobot's limit of one gRPC message."""
_MAX_CHUNKS = 2048
_BEGIN, _MIDDLE, _END = 1, 2, 3


def encode_chunks(payload: bytes) -> Iterator[bytes]:
    """Yield a payload as the messages of a stream."""
    for start in range(0, len(payload), CHUNK_BYTES):
        last = start + CHUNK_BYTES >= len(payload)
        state = _END if last else (_MIDDLE if start else _BEGIN)
        yield encode_fields({1: state, 2: payload[start : start + CHUNK_BYTES]})


class ChunkAssembler:
    """Assembles payloads from their chunks, each up to a size."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._chunks, self.size = max_bytes, list[bytes](), 0
        """``size`` counts the bytes of the unfinished payload."""

    def add(self, frame: bytes) -> bytes | None:
        """Add a chunk; return the payload if the chunk completes it, else None."""
        fields = decode_fields(frame)
        state, data = fields.get(1, 0), fields.get(2, b"")
        if state not in (_BEGIN, _MIDDLE, _END) or not isinstance(data, bytes):
            raise bad_frame(
                "the message is not a chunk of a payload", frame, code="protocol.invalid-frame"
            )
        if state == _BEGIN:
            self._clear()
        self._chunks.append(data)
        self.size += len(data)
        if self.size > self._max_bytes or len(self._chunks) > _MAX_CHUNKS:
            self._clear()
            raise ProtocolError(
                f"a payload has more than {self._max_bytes} bytes or {_MAX_CHUNKS} chunks",
                code="protocol.too-large",
            )
        if state != _END:
            return None
        payload = b"".join(self._chunks)
        self._clear()
        return payload

    def _clear(self) -> None:
        self._chunks.clear()
        self.size = 0
