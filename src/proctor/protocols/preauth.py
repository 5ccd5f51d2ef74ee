"""What each protocol reads from a client before it checks the API key, and the bounds of that.

Everything else (arrays, images, pickles, observations) is decoded only after the key was found
right. If ``proctor serve`` has no key, every client is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

from proctor.protocols.inference_messages import Protocol


@dataclass(frozen=True)
class PreAuthReader:
    """One protocol's reader of unauthenticated bytes."""

    reads: str
    max_bytes: int | None
    """None: one whole message (``--max_message_mb``), because the key is inside it."""
    max_values: int
    max_depth: int = 1


_HTTP_LINES, _HTTP_LINE_BYTES = 128, 8192
_HTTP = PreAuthReader(
    "the head of the HTTP request, read by websockets; the key is a header or in the query",
    (_HTTP_LINES + 2) * _HTTP_LINE_BYTES,
    _HTTP_LINES,
)
PRE_AUTH = {
    Protocol.OPENPI: _HTTP,
    Protocol.VLA_EVAL: _HTTP,
    Protocol.GROOT: PreAuthReader(
        "the outer map of the request, by a linear scan that decodes only endpoint and api_token",
        None,
        max_values=10_000,
        max_depth=32,
    ),
    Protocol.LEROBOT: PreAuthReader(
        "the call's metadata, read by gRPC; the key is one of the entries",
        16 * 2**10,
        16 * 2**10 // 32,  # HTTP/2 counts 32 bytes for an entry beside its text
    ),
}
