"""One side of a ZMTP connection for messages in one direction, without I/O.

``feed`` takes received bytes, ``next_message`` returns messages, ``outgoing`` has bytes to send.

Without a key, the peers speak ZMTP's NULL mechanism, as every ZeroMQ library does. With a key, they
speak a mechanism of Proctor:

    both      HELLO and 32 random bytes
    client    READY, the proof of the key, properties
    server    READY, the proof of the key, properties; or ERROR and a reason
    then      each message has one more part: an HMAC of its number and its other parts

So both know that the other one has the key, and no message can be changed, repeated or made up.
The messages are not encrypted.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, TypeVar

from proctor.errors import ProtocolError
from proctor.protocols.zmtp import frames as zmtp

KEYED = b"PROCTOR-HMAC"
_HELLO = b"\x05HELLO"
_NONCE_BYTES = _PROOF_BYTES = 32
_MOST_UNSENT_PONGS = 4096
ResultT = TypeVar("ResultT")
_Taking: TypeAlias = Generator[None, None, ResultT]
"""Yields where bytes are missing, and returns a result."""


class Role(Enum):
    """The side of a connection."""

    SERVER = b"server"
    CLIENT = b"client"

    @property
    def other(self) -> Role:
        """The other side."""
        return Role.CLIENT if self is Role.SERVER else Role.SERVER


class Refusal(Enum):
    """Reasons of a server's ERROR command."""

    BUSY = b"busy"
    WRONG_KEY = b"wrong key"
    NEEDS_KEY = b"needs a key"
    HAS_NO_KEY = b"has no key"
    OTHER = b"refused"


class Refused(ProtocolError):
    """A peer refuses this one, or must be refused."""

    default_code = "protocol.refused"

    def __init__(self, reason: Refusal) -> None:
        super().__init__(f"the connection is refused: {reason.value.decode()}")
        self.reason = reason


@dataclass(frozen=True)
class MessageLimits:
    """Limits of one message."""

    parts: int
    bytes: int


class ZmtpPeer:
    """This side of a connection; after an error it must be closed."""

    def __init__(
        self, role: Role, socket_type: str, limits: MessageLimits, key: bytes | None = None
    ) -> None:
        self._role, self._socket_type, self._limits, self._key = role, socket_type, limits, key
        mechanism = zmtp.NULL if key is None else KEYED
        self.outgoing = bytearray(zmtp.encode_greeting(mechanism))
        """Bytes to send; the user deletes what it has sent."""
        self.is_open = False
        """Whether the handshake is complete."""
        self.waits_for_admission = False
        """Whether a client has done its part of the handshake: ``admit`` or ``refuse`` it."""
        self._received = bytearray()
        self._session = b""
        self._counts = dict.fromkeys(Role, 0)
        self._steps = self._converse()

    def feed(self, data: bytes) -> None:
        """Take received bytes."""
        self._received += data

    def next_message(self) -> list[bytes] | None:
        """Return the next message, or None if more bytes are needed.

        Raises:
            Refused: the peer refuses this one, or has another key.
            ProtocolError: the peer breaks the protocol or a limit.
        """
        return next(self._steps)

    def admit(self) -> None:
        """Complete the handshake of a client."""
        self._send_ready()
        self.waits_for_admission, self.is_open = False, True

    def refuse(self, reason: Refusal) -> None:
        """Tell the peer why it is refused."""
        self.outgoing += zmtp.error_command(reason.value)

    def send(self, parts: Sequence[bytes]) -> None:
        """Send a message."""
        tag = [self._tag(self._role, parts)] if self._key is not None else []
        self.outgoing += zmtp.encode_message([*parts, *tag])

    # The handshake

    def _converse(self) -> Iterator[list[bytes] | None]:
        """Do the handshake and yield each message; yield None where bytes are missing."""
        yield from self._shake_hands()
        while self._role is Role.SERVER and not self.is_open:
            self.waits_for_admission = True
            yield None
        self.is_open = True
        yield None  # a handshake ends without a message
        while True:
            message = yield from self._take_message()
            yield message

    def _shake_hands(self) -> _Taking[None]:
        greeting = yield from self._take(zmtp.GREETING_BYTES)
        mechanism = zmtp.check_greeting(greeting)
        if mechanism not in (zmtp.NULL, KEYED):
            raise Refused(Refusal.OTHER)
        if (mechanism == KEYED) != (self._key is not None):
            has_key = self._key is not None if self._role is Role.SERVER else mechanism == KEYED
            raise Refused(Refusal.NEEDS_KEY if has_key else Refusal.HAS_NO_KEY)
        if self._key is not None:
            yield from self._agree_on_session(self._key)
        if self._role is Role.CLIENT:
            self._send_ready()
        yield from self._take_ready()

    def _agree_on_session(self, key: bytes) -> _Taking[None]:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self.outgoing += zmtp.encode_command(_HELLO + nonce)
        hello = yield from self._take_command()
        if not hello.startswith(_HELLO) or len(hello) != len(_HELLO) + _NONCE_BYTES:
            raise ProtocolError("expected HELLO", code="protocol.invalid-handshake")
        nonces = {self._role: nonce, self._role.other: hello[len(_HELLO) :]}
        both = nonces[Role.CLIENT] + nonces[Role.SERVER]
        self._session = hmac.digest(key, b"session" + both, "sha256")

    def _send_ready(self) -> None:
        proof = self._proof(self._role) if self._key is not None else b""
        self.outgoing += zmtp.ready_command(self._socket_type, proof)

    def _take_ready(self) -> _Taking[None]:
        command = yield from self._take_command()
        reason = zmtp.error_reason(command)
        if reason is not None:
            known = {refusal.value: refusal for refusal in Refusal}
            raise Refused(known.get(reason, Refusal.OTHER))
        content = zmtp.check_ready(command)
        if self._key is not None and not hmac.compare_digest(
            content[:_PROOF_BYTES], self._proof(self._role.other)
        ):
            raise Refused(Refusal.WRONG_KEY)

    def _proof(self, role: Role) -> bytes:
        return hmac.digest(self._session, b"proof" + role.value, "sha256")

    def _tag(self, role: Role, parts: Sequence[bytes]) -> bytes:
        """Return the HMAC of the next message of ``role``."""
        made = hmac.new(self._session, b"message" + role.value, "sha256")
        made.update(self._counts[role].to_bytes(8, "big"))
        self._counts[role] += 1
        for part in parts:
            made.update(len(part).to_bytes(8, "big") + part)
        return made.digest()

    # Frames

    def _take(self, count: int) -> _Taking[bytes]:
        while len(self._received) < count:
            yield None
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    def _take_command(self) -> _Taking[bytes]:
        flags, size = yield from self._take_head()
        if not flags.command:
            raise ProtocolError("a message before the handshake", code="protocol.invalid-handshake")
        return (yield from self._take_command_body(size))

    def _take_command_body(self, size: int) -> _Taking[bytes]:
        if size > zmtp.MOST_COMMAND:
            raise ProtocolError(f"a command of {size} bytes", code="protocol.too-large")
        return (yield from self._take(size))

    def _take_head(self) -> _Taking[tuple[zmtp.Flags, int]]:
        flags = zmtp.parse_flags((yield from self._take(1))[0])
        size = int.from_bytes((yield from self._take(flags.size_bytes)), "big")
        return flags, size

    def _take_message(self) -> _Taking[list[bytes]]:
        """Take a message; answer heartbeats."""
        parts: list[bytes] = []
        keyed = self._key is not None
        left, more = self._limits.bytes + _PROOF_BYTES * keyed, True
        while more:
            flags, size = yield from self._take_head()
            if flags.command:
                pong = zmtp.pong_reply((yield from self._take_command_body(size)))
                if pong is not None and len(self.outgoing) < _MOST_UNSENT_PONGS:
                    self.outgoing += pong
                continue
            left, more = left - size, flags.more
            if left < 0 or len(parts) >= self._limits.parts + keyed:
                raise ProtocolError(
                    f"a message has more than {self._limits.bytes} bytes or {self._limits.parts} "
                    "parts",
                    code="protocol.too-large",
                )
            parts.append((yield from self._take(size)))
        if keyed:
            tag = parts.pop()
            if not hmac.compare_digest(tag, self._tag(self._role.other, parts)):
                raise ProtocolError("a message has a wrong HMAC", code="protocol.wrong-hmac")
        return parts
