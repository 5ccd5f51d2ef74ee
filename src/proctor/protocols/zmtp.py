"""ZMTP 3.1, ZeroMQ's wire protocol: a greeting, the NULL handshake, then frames.

This is the part that a server for REQ sockets needs (rfc.zeromq.org, 37). ZeroMQ's own library
buffers a message until its last part has arrived and bounds only each part, so it is not used here.
"""

from __future__ import annotations

from typing import NamedTuple

from proctor.errors import ProtocolError

GREETING_BYTES = 64
MOST_COMMAND = 512
"""Limit of a command in bytes; a handshake has less than a hundred."""
_VERSION, _MECHANISM = b"\x03\x01", b"NULL"
GREETING = (
    b"\xff" + b"\x01".rjust(8, b"\0") + b"\x7f" + _VERSION + _MECHANISM.ljust(20, b"\0") + bytes(32)
)
_MORE, _LONG, _COMMAND = 1, 2, 4
_READY, _PING, _PONG = b"\x05READY", b"\x04PING", b"\x04PONG"
_TTL_BYTES, _MOST_CONTEXT = 2, 16


class Flags(NamedTuple):
    """The flags in the first byte of a frame."""

    more: bool
    """Whether another frame of the same message follows."""
    command: bool
    size_bytes: int
    """Size of the length field in bytes."""


def check_greeting(greeting: bytes) -> None:
    """Check a client's greeting.

    Raises:
        ProtocolError: the client speaks another protocol, version or security mechanism.
    """
    if greeting[0] != 0xFF or not greeting[9] & 1:
        raise ProtocolError("this is not a ZeroMQ greeting", code="protocol.invalid-handshake")
    if greeting[10] < _VERSION[0]:
        raise ProtocolError(
            f"ZMTP {greeting[10]} is not supported; use version 3",
            code="protocol.invalid-handshake",
        )
    if greeting[12:32].rstrip(b"\0") != _MECHANISM:
        raise ProtocolError(
            "only the NULL security mechanism is supported", code="protocol.invalid-handshake"
        )


def ready_command(socket_type: str = "ROUTER") -> bytes:
    """Return the READY command, which ends the handshake."""
    properties = {"Socket-Type": socket_type, "Identity": ""}
    body = b"".join(
        bytes([len(name)]) + name.encode() + len(value).to_bytes(4, "big") + value.encode()
        for name, value in properties.items()
    )
    return _frame(_READY + body, _COMMAND)


def check_ready(command: bytes) -> None:
    """Check that a client's command is READY.

    Raises:
        ProtocolError: it is another command.
    """
    if not command.startswith(_READY):
        raise ProtocolError(
            f"expected READY, got {command[:20]!r}", code="protocol.invalid-handshake"
        )


def parse_flags(byte: int) -> Flags:
    """Parse the first byte of a frame.

    Raises:
        ProtocolError: no frame begins with this byte.
    """
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
