"""What the two packet formats share: requests, replies and the codec interface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

WordOrder: TypeAlias = Literal["little", "big"]
BROADCAST_ID = 0xFE
HIGHEST_ID = 0xFC


class Reply(NamedTuple):
    """A motor's status packet."""

    id: int
    error: int
    """The error byte; 0 if all is well."""
    data: bytes


@dataclass(frozen=True)
class Request:
    """A packet and the replies it asks for."""

    packet: bytes
    ids: tuple[int, ...]
    """Motors that answer, in the order of their answers; empty if no motor answers."""
    data_size: int
    """Bytes of data in each reply."""
    reply_size: int
    """Bytes of all replies together, at least; stuffing may add some."""


class Scan(NamedTuple):
    """Packets found in received bytes."""

    replies: list[Reply]
    rest: bytes
    """Bytes after the last packet that may be the beginning of the next one."""
    corrupt: int
    """Packets with a wrong checksum."""


class PacketCodec(Protocol):
    """Builds requests and finds replies in received bytes."""

    @property
    def word_order(self) -> WordOrder:
        """Order of the bytes of a register."""

    def ping(self, motor_id: int) -> Request:
        """Return a ping of one motor."""

    def broadcast_ping(self) -> bytes:
        """Return a ping of all motors."""

    def read(self, motor_id: int, address: int, size: int) -> Request:
        """Return a request for ``size`` bytes at ``address``."""

    def write(self, motor_id: int, address: int, data: bytes) -> Request:
        """Return a write that the motor confirms; a write to BROADCAST_ID gets no reply."""

    def sync_read(self, address: int, size: int, motor_ids: Sequence[int]) -> Request:
        """Return one request for the same register of several motors."""

    def sync_write(self, address: int, size: int, items: Iterable[tuple[int, bytes]]) -> bytes:
        """Return one write to the same register of several motors; they do not answer."""

    def match(self, received: bytes, request: Request) -> list[Reply] | None:
        """Return the replies if ``received`` is exactly the answer to ``request``, else None."""

    def scan(self, received: bytes, request: Request) -> Scan:
        """Find every packet in ``received``; skip noise and packets with a wrong checksum."""

    def alert(self, error: int) -> str:
        """Return the alert in an error byte ("overload"), or an empty string."""

    def refusal(self, error: int) -> str:
        """Return why the motor refused a request ("data limit"), or an empty string."""
