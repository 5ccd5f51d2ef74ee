"""ZMTP 3.1, what ZeroMQ says on a wire: a greeting, a handshake without keys, then frames.

As much of it as a server of REQ sockets needs (rfc.zeromq.org, 37). ZeroMQ's own library holds a
message in memory until its last part has come, bounds only each part, and tells nobody before.
"""

from __future__ import annotations

from typing import NamedTuple

from proctor.errors import ProtocolError

GREETING_BYTES = 64
MOST_COMMAND = 512
"""Bytes of a command: a handshake is less than a hundred."""
_VERSION, _MECHANISM = b"\x03\x01", b"NULL"
GREETING = (
    b"\xff" + b"\x01".rjust(8, b"\0") + b"\x7f" + _VERSION + _MECHANISM.ljust(20, b"\0") + bytes(32)
)
_MORE, _LONG, _COMMAND = 1, 2, 4
_READY, _PING, _PONG = b"\x05READY", b"\x04PING", b"\x04PONG"
_TTL_BYTES, _MOST_CONTEXT = 2, 16


class Flags(NamedTuple):
    """What the first byte of a frame says."""

    more: bool
    """Whether the message goes on after it."""
    command: bool
    size_bytes: int
    """How many bytes say how long it is."""


def check_greeting(greeting: bytes) -> None:
    """Refuse who speaks something else.

    Raises:
        WireError: saying what.
    """
    if greeting[0] != 0xFF or not greeting[9] & 1:
        raise ProtocolError("no greeting of ZeroMQ's", code="protocol.invalid-handshake")
    if greeting[10] < _VERSION[0]:
        raise ProtocolError(
            f"ZMTP {greeting[10]} is not spoken here, 3 is", code="protocol.invalid-handshake"
        )
    if greeting[12:32].rstrip(b"\0") != _MECHANISM:
        raise ProtocolError("no keys are exchanged here", code="protocol.invalid-handshake")


def ready_command(socket_type: str = "ROUTER") -> bytes:
    """Return the command that ends a handshake."""
    told = {"Socket-Type": socket_type, "Identity": ""}
    body = b"".join(
        bytes([len(name)]) + name.encode() + len(value).to_bytes(4, "big") + value.encode()
        for name, value in told.items()
    )
    return _frame(_READY + body, _COMMAND)


def check_ready(command: bytes) -> None:
    """Refuse who does not end the handshake.

    Raises:
        WireError: it says something else.
    """
    if not command.startswith(_READY):
        raise ProtocolError(
            f"no end of a handshake: {command[:20]!r}", code="protocol.invalid-handshake"
        )


def parse_flags(byte: int) -> Flags:
    """Return what a frame's first byte says.

    Raises:
        WireError: no frame begins so.
    """
    command = bool(byte & _COMMAND)
    if byte > _MORE + _LONG + _COMMAND or (command and byte & _MORE):
        raise ProtocolError(f"no frame begins with {byte:#04x}", code="protocol.invalid-frame")
    return Flags(bool(byte & _MORE), command, 8 if byte & _LONG else 1)


def pong_reply(command: bytes) -> bytes | None:
    """Return the answer to a heartbeat; None where the command is none."""
    if not command.startswith(_PING):
        return None
    context = command[len(_PING) + _TTL_BYTES :][:_MOST_CONTEXT]
    return _frame(_PONG + context, _COMMAND)


def encode_reply(body: bytes) -> bytes:
    """Return what a REQ socket takes for an answer: an empty part, then the answer."""
    return _frame(b"", _MORE) + _frame(body, 0)


def _frame(body: bytes, flags: int) -> bytes:
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | _LONG]) + len(body).to_bytes(8, "big") + body
