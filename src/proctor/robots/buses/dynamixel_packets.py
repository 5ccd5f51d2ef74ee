"""Dynamixel protocol 2.0 packets: ``FF FF FD 00 id length(2) instruction data… crc(2)``.

``FF FF FD`` in instruction and data would look like a header, so an extra FD is stuffed behind it
on the wire. Length and CRC include the stuffed bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proctor.robots.buses.packets import BROADCAST_ID, Reply, Request, Scan, WordOrder

_PING, _READ, _WRITE, _STATUS, _SYNC_READ, _SYNC_WRITE = 0x01, 0x02, 0x03, 0x55, 0x82, 0x83
_HEADER = b"\xff\xff\xfd\x00"
_OVERHEAD = 11
"""Bytes of a status packet without data: header 4, id, length 2, instruction, error, CRC 2."""
_LONGEST = 400
"""Largest length field taken for a real one; a longer one is a damaged byte."""
_PING_DATA = 3
"""Bytes of data in the reply to a ping: model number and firmware version."""
_ALERT = 0x80
_REFUSALS = {
    1: "it could not process the request",
    2: "unknown instruction",
    3: "it received a wrong CRC",
    4: "value out of the register's range",
    5: "wrong data length",
    6: "value out of the motor's limits",
    7: "the register cannot be accessed now, as while torque is on",
}


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        crc = value << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x8005 if crc & 0x8000 else crc << 1) & 0xFFFF
        table.append(crc)
    return tuple(table)


_CRC = _crc_table()


def crc16(data: bytes) -> int:
    """Return the CRC-16 of ``data``: polynomial 8005, initial value 0, not reflected."""
    crc = 0
    for byte in data:
        crc = (crc << 8 & 0xFF00) ^ _CRC[crc >> 8 ^ byte]
    return crc


def stuff(body: bytes) -> bytes:
    """Return ``body`` with an FD behind every ``FF FF FD``."""
    return body.replace(b"\xff\xff\xfd", b"\xff\xff\xfd\xfd")


def unstuff(body: bytes) -> bytes:
    """Return ``body`` without the stuffed bytes."""
    return body.replace(b"\xff\xff\xfd\xfd", b"\xff\xff\xfd")


class DynamixelCodec:
    """Packets of X-series motors."""

    word_order: WordOrder = "little"

    def ping(self, motor_id: int) -> Request:
        """Return a ping of one motor; its reply has the model number and the firmware version."""
        return _request(motor_id, _PING, b"", _PING_DATA)

    def broadcast_ping(self) -> bytes:
        """Return a ping of all motors."""
        return _packet(BROADCAST_ID, _PING, b"")

    def read(self, motor_id: int, address: int, size: int) -> Request:
        """Return a request for ``size`` bytes at ``address``."""
        return _request(motor_id, _READ, _words(address, size), size)

    def write(self, motor_id: int, address: int, data: bytes) -> Request:
        """Return a write; a write to BROADCAST_ID gets no reply."""
        return _request(motor_id, _WRITE, _words(address) + data, 0)

    def sync_read(self, address: int, size: int, motor_ids: Sequence[int]) -> Request:
        """Return one request for the same register of several motors."""
        packet = _packet(BROADCAST_ID, _SYNC_READ, _words(address, size) + bytes(motor_ids))
        return Request(packet, tuple(motor_ids), size, len(motor_ids) * (_OVERHEAD + size))

    def sync_write(self, address: int, size: int, items: Iterable[tuple[int, bytes]]) -> bytes:
        """Return one write to the same register of several motors."""
        body = b"".join(bytes((motor_id,)) + data for motor_id, data in items)
        return _packet(BROADCAST_ID, _SYNC_WRITE, _words(address, size) + body)

    def match(self, received: bytes, request: Request) -> list[Reply] | None:
        """Return the replies if ``received`` is exactly the answer to ``request``, else None."""
        size = _OVERHEAD + request.data_size
        if len(received) != size * len(request.ids):
            return None
        replies = []
        for index, motor_id in enumerate(request.ids):
            packet = received[index * size : (index + 1) * size]
            head = _HEADER + bytes((motor_id,)) + _words(size - 7) + bytes((_STATUS,))
            if packet[:8] != head or crc16(packet[:-2]) != int.from_bytes(packet[-2:], "little"):
                return None
            if b"\xff\xff\xfd" in packet[8:-2]:  # stuffed: shorter data than asked for
                return None
            replies.append(Reply(motor_id, packet[8], packet[9:-2]))
        return replies

    def scan(self, received: bytes, request: Request) -> Scan:
        """Find every status packet in ``received``; skip noise and packets with a wrong CRC."""
        replies: list[Reply] = []
        corrupt, at = 0, 0
        while (at := received.find(_HEADER, at)) >= 0:
            if len(received) < at + 7:
                return Scan(replies, received[at:], corrupt)
            motor_id = received[at + 4]
            length = int.from_bytes(received[at + 5 : at + 7], "little")
            packet = received[at : at + 7 + length]
            whole = 4 <= length <= _LONGEST and len(packet) == 7 + length
            if whole and crc16(packet[:-2]) == int.from_bytes(packet[-2:], "little"):
                if packet[7] == _STATUS:
                    body = unstuff(packet[7:-2])
                    replies.append(Reply(motor_id, body[1], body[2:]))
                at += len(packet)
                continue
            if motor_id in request.ids and _may_answer(length, request):
                if not whole:
                    return Scan(replies, received[at:], corrupt)
                corrupt += 1
            at += 1
        kept = next((n for n in (3, 2, 1) if received.endswith(_HEADER[:n])), 0)
        return Scan(replies, received[len(received) - kept :], corrupt)

    def alert(self, error: int) -> str:
        """Return "hardware error" if the alert bit is set; Hardware_Error_Status tells more."""
        return "hardware error" if error & _ALERT else ""

    def refusal(self, error: int) -> str:
        """Return why the motor refused a request, or an empty string."""
        code = error & 0x7F
        return _REFUSALS.get(code, f"error {code}") if code else ""


def _may_answer(length: int, request: Request) -> bool:
    """Return whether ``length`` fits the reply to ``request``, with or without stuffed bytes."""
    plain = request.data_size + 4
    return plain <= length <= plain + request.data_size // 3 + 1


def _words(*values: int) -> bytes:
    return b"".join(value.to_bytes(2, "little") for value in values)


def _packet(motor_id: int, instruction: int, parameters: bytes) -> bytes:
    body = stuff(bytes((instruction,)) + parameters)
    packet = _HEADER + bytes((motor_id,)) + _words(len(body) + 2) + body
    return packet + _words(crc16(packet))


def _request(motor_id: int, instruction: int, parameters: bytes, data_size: int) -> Request:
    ids = () if motor_id == BROADCAST_ID else (motor_id,)
    packet = _packet(motor_id, instruction, parameters)
    return Request(packet, ids, data_size, len(ids) * (_OVERHEAD + data_size))
