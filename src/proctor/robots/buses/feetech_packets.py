"""Feetech packets: ``FF FF id length instruction|error data… checksum``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proctor.robots.buses.packets import BROADCAST_ID, Reply, Request, Scan, WordOrder

_PING, _READ, _WRITE, _SYNC_READ, _SYNC_WRITE = 0x01, 0x02, 0x03, 0x82, 0x83
_HEADER = b"\xff\xff"
_OVERHEAD = 6
"""Bytes of a status packet without data: header 2, id, length, error, checksum."""
_ALERTS = {
    1: "input voltage",
    2: "angle sensor",
    4: "overheating",
    8: "over-current",
    32: "overload",
}


class FeetechCodec:
    """Packets of STS and SMS motors (words little-endian) and SCS motors (big-endian)."""

    def __init__(self, word_order: WordOrder = "little") -> None:
        self.word_order: WordOrder = word_order

    def ping(self, motor_id: int) -> Request:
        """Return a ping of one motor; its reply has no data."""
        return _request(motor_id, _PING, b"", 0)

    def broadcast_ping(self) -> bytes:
        """Return a ping of all motors."""
        return _packet(BROADCAST_ID, _PING, b"")

    def read(self, motor_id: int, address: int, size: int) -> Request:
        """Return a request for ``size`` bytes at ``address``."""
        return _request(motor_id, _READ, bytes((address, size)), size)

    def write(self, motor_id: int, address: int, data: bytes) -> Request:
        """Return a write; a write to BROADCAST_ID gets no reply."""
        return _request(motor_id, _WRITE, bytes((address,)) + data, 0)

    def sync_read(self, address: int, size: int, motor_ids: Sequence[int]) -> Request:
        """Return one request for the same register of several motors."""
        packet = _packet(BROADCAST_ID, _SYNC_READ, bytes((address, size, *motor_ids)))
        return Request(packet, tuple(motor_ids), size, len(motor_ids) * (_OVERHEAD + size))

    def sync_write(self, address: int, size: int, items: Iterable[tuple[int, bytes]]) -> bytes:
        """Return one write to the same register of several motors."""
        body = b"".join(bytes((motor_id,)) + data for motor_id, data in items)
        return _packet(BROADCAST_ID, _SYNC_WRITE, bytes((address, size)) + body)

    def match(self, received: bytes, request: Request) -> list[Reply] | None:
        """Return the replies if ``received`` is exactly the answer to ``request``, else None."""
        size = _OVERHEAD + request.data_size
        if len(received) != size * len(request.ids):
            return None
        replies = []
        for index, motor_id in enumerate(request.ids):
            packet = received[index * size : (index + 1) * size]
            if (
                packet[:4] != bytes((0xFF, 0xFF, motor_id, request.data_size + 2))
                or sum(packet[2:]) & 0xFF != 0xFF
            ):
                return None
            replies.append(Reply(motor_id, packet[4], packet[5:-1]))
        return replies

    def scan(self, received: bytes, request: Request) -> Scan:
        """Find every packet in ``received``; skip noise and packets with a wrong checksum.

        A header without the rest of its packet is waited for only if the request asks for such a
        packet: a damaged length byte must not swallow the packets behind it.
        """
        replies: list[Reply] = []
        corrupt, at = 0, 0
        while (at := received.find(_HEADER, at)) >= 0:
            head = received[at : at + 4]
            if len(head) < 4:
                return Scan(replies, received[at:], corrupt)
            motor_id, length = head[2], head[3]
            packet = received[at : at + 4 + length]
            whole = length >= 2 and len(packet) == 4 + length
            if whole and sum(packet[2:]) & 0xFF == 0xFF:
                replies.append(Reply(motor_id, packet[4], packet[5:-1]))
                at += len(packet)
                continue
            if motor_id in request.ids and length == request.data_size + 2:
                if not whole:
                    return Scan(replies, received[at:], corrupt)
                corrupt += 1
            at += 1
        return Scan(replies, received[-1:] if received.endswith(b"\xff") else b"", corrupt)

    def alert(self, error: int) -> str:
        """Return the alerts in an error byte, or an empty string."""
        known = [text for bit, text in _ALERTS.items() if error & bit]
        unknown = [f"error bit {1 << n}" for n in (4, 6, 7) if error >> n & 1]
        return " and ".join(known + unknown)

    def refusal(self, error: int) -> str:
        """Return an empty string: a Feetech motor has no error for a refused request."""
        return ""


def _packet(motor_id: int, instruction: int, parameters: bytes) -> bytes:
    body = bytes((motor_id, len(parameters) + 2, instruction)) + parameters
    return _HEADER + body + bytes((~sum(body) & 0xFF,))


def _request(motor_id: int, instruction: int, parameters: bytes, data_size: int) -> Request:
    ids = () if motor_id == BROADCAST_ID else (motor_id,)
    packet = _packet(motor_id, instruction, parameters)
    return Request(packet, ids, data_size, len(ids) * (_OVERHEAD + data_size))
