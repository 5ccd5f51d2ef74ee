"""ZMTP 3.1, ZeroMQ's wire protocol: a greeting, a handshake, then frames (rfc.zeromq.org, 37).

ZeroMQ's own library buffers a message until its last part has arrived and bounds only each part, so
it is not used for peers that may be hostile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from proctor.errors import ProtocolError

GREETING_BYTES = 64
MOST_COMMAND = 512
"""Limit of a command in bytes; a handshake has less than a hundred."""
NULL = b"NULL"
"""The security mechanism without security."""
_VERSION = b"\x03\x01"
_MORE, _LONG, _COMMAND = 1, 2, 4
_READY, _ERROR, _PING, _PONG = b"\x05READY", b"\x05ERROR", b"\x04PING", b"\x04PONG"
_TTL_BYTES, _MOST_CONTEXT = 2, 16


class Flags(NamedTuple):
    """The flags in the first byte of a frame."""

    more: bool
    """Whether another frame of the same message follows."""
    command: bool
    size_bytes: int
    """Size of the length field in bytes."""


def encode_greeting(mechanism: bytes) -> bytes:
    """Return a greeting that asks for a security mechanism."""
    signature = b"\xff" + b"\x01".rjust(8, b"\0") + b"\x7f"
    return signature + _VERSION + mechanism.ljust(20, b"\0") + bytes(32)


GREETING = encode_greeting(NULL)


def check_greeting(greeting: bytes) -> bytes:
    """Check a peer's greeting; return the security mechanism that it asks for."""
    if greeting[0] != 0xFF or not greeting[9] & 1:
        raise ProtocolError("this is not a ZeroMQ greeting", code="protocol.invalid-handshake")
    if greeting[10] < _VERSION[0]:
        raise ProtocolError(
            f"ZMTP {greeting[10]} is not supported; use version 3",
            code="protocol.invalid-handshake",
        )
    return greeting[12:32].rstrip(b"\0")


def check_null(mechanism: bytes) -> None:
    """Raise ProtocolError unless a peer asks for no security mechanism."""
    if mechanism != NULL:
        raise ProtocolError(
            "only the NULL security mechanism is supported", code="protocol.invalid-handshake"
        )


def ready_command(socket_type: str = "ROUTER", proof: bytes = b"") -> bytes:
    """Return the READY command, which ends the handshake; ``proof`` of a key goes before it."""
    properties = {"Socket-Type": socket_type, "Identity": ""}
    body = b"".join(
        bytes([len(name)]) + name.encode() + len(value).to_bytes(4, "big") + value.encode()
        for name, value in properties.items()
    )
    return encode_command(_READY + proof + body)


def error_command(reason: bytes) -> bytes:
    """Return the ERROR command, which refuses a peer."""
    return encode_command(_ERROR + bytes([len(reason)]) + reason)


def error_reason(command: bytes) -> bytes | None:
    """Return the reason of an ERROR command; None for other commands."""
    return command[len(_ERROR) + 1 :] if command.startswith(_ERROR) else None


def encode_command(body: bytes) -> bytes:
    """Encode a command."""
    return _frame(body, _COMMAND)


def encode_message(parts: Sequence[bytes]) -> bytes:
    """Encode a message."""
    last = len(parts) - 1
    return b"".join(_frame(part, _MORE * (n < last)) for n, part in enumerate(parts))


def check_ready(command: bytes) -> bytes:
    """Check that a peer's command is READY; return its content."""
    if not command.startswith(_READY):
        raise ProtocolError(
            f"expected READY, got {command[:20]!r}", code="protocol.invalid-handshake"
        )
    return command[len(_READY) :]


def parse_flags(byte: int) -> Flags:
    """Parse the first byte of a frame."""
    command = bool(byte & _COMMAND)
    if byte > _MORE + _LONG + _COMMAND or (command and byte & _MORE):
        raise ProtocolError(f"no frame begins with {byte:#04x}", code="protocol.invalid-frame")
    return Flags(bool(byte & _MORE), command, 8 if byte & _LONG else 1)


def pong_reply(command: bytes) -> bytes | None:
    """Return the PONG for a PING command; None for other commands."""
    if not command.startswith(_PING):
        return None
    context = command[len(_PING) + _TTL_BYTES :][:_MOST_CONTEXT]
    return _frame(_PONG + context, _COMMAND)


def encode_reply(body: bytes) -> bytes:
    """Encode a reply for a REQ socket: an empty part, then the body."""
    return _frame(b"", _MORE) + _frame(body, 0)


def _frame(body: bytes, flags: int) -> bytes:
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | _LONG]) + len(body).to_bytes(8, "big") + body
