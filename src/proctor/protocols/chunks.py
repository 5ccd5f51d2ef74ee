"""Chunks of LeRobot's gRPC streams: a payload is sent in messages of at most 2 MiB.

Each message is {1: transfer state, 2: data}. The last chunk has the state END, the first of several
BEGIN, the others MIDDLE. A payload of one chunk is a single END; an empty payload is not sent.
"""

from __future__ import annotations

from collections.abc import Iterator

from proctor.errors import ProtocolError
from proctor.protocols.msgpack_arrays import bad_frame
from proctor.protocols.protobuf import decode_fields, encode_fields

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
