"""Packets as the motors see them: they decode instructions and encode status packets."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from proctor.robots.buses.registers import BusProtocol

BROADCAST_ID = 0xFE
_FEETECH_HEADER = b"\xff\xff"
_DYNAMIXEL_HEADER = b"\xff\xff\xfd\x00"
_STUFFED, _PLAIN = b"\xff\xff\xfd\xfd", b"\xff\xff\xfd"
_STATUS = 0x55
_LONGEST_PACKET = 1024
"""A Dynamixel length field beyond this is noise."""


class Instruction(IntEnum):
    """Instructions that both protocols share."""

    PING = 0x01
    READ = 0x02
    WRITE = 0x03
    REG_WRITE = 0x04
    ACTION = 0x05
    REBOOT = 0x08
    SYNC_READ = 0x82
    SYNC_WRITE = 0x83


class InstructionPacket(NamedTuple):
    """A valid packet of the host."""

    id: int
    instruction: int
    parameters: bytes
    raw: bytes


class SyncParameters(NamedTuple):
    """Parameters of a sync read or write; ``rest`` holds the ids, or ids and data."""

    address: int
    size: int
    rest: bytes


class InstructionDecoder:
    """Cuts the host's byte stream into packets; drops noise and wrong checksums."""

    def __init__(self, protocol: BusProtocol) -> None:
        self._protocol = protocol
        self._buffer = b""

    def feed(self, data: bytes) -> list[InstructionPacket]:
        """Return the packets that ``data`` completes."""
        self._buffer += data
        packets = []
        while (raw := self._next_raw()) is not None:
            packet = self._decoded(raw)
            if packet is not None:
                packets.append(packet)
        return packets

    def _next_raw(self) -> bytes | None:
        feetech = self._protocol is BusProtocol.FEETECH
        header = _FEETECH_HEADER if feetech else _DYNAMIXEL_HEADER
        while (start := self._buffer.find(header)) >= 0:
            self._buffer = self._buffer[start:]
            if feetech:
                if len(self._buffer) < 4:
                    return None
                size = 4 + self._buffer[3]
                valid = self._buffer[2] != 0xFF and self._buffer[3] >= 2
            else:
                if len(self._buffer) < 7:
                    return None
                size = 7 + int.from_bytes(self._buffer[5:7], "little")
                valid = 10 <= size <= _LONGEST_PACKET
            if not valid:
                self._buffer = self._buffer[1:]
                continue
            if len(self._buffer) < size:
                return None
            raw, self._buffer = self._buffer[:size], self._buffer[size:]
            return raw
        self._buffer = self._buffer[-3:]
        return None

    def _decoded(self, raw: bytes) -> InstructionPacket | None:
        if self._protocol is BusProtocol.FEETECH:
            if feetech_checksum(raw[:-1]) != raw[-1]:
                return None
            return InstructionPacket(raw[2], raw[4], raw[5:-1], raw)
        if crc16(raw[:-2]) != int.from_bytes(raw[-2:], "little"):
            return None
        return InstructionPacket(raw[4], raw[7], raw[8:-2].replace(_STUFFED, _PLAIN), raw)


def status_packet(protocol: BusProtocol, motor_id: int, error: int, data: bytes) -> bytes:
    """Return a motor's status packet."""
    if protocol is BusProtocol.FEETECH:
        packet = _FEETECH_HEADER + bytes((motor_id, len(data) + 2, error)) + data
        return packet + bytes((feetech_checksum(packet),))
    body = (bytes((_STATUS, error)) + data).replace(_PLAIN, _STUFFED)
    packet = _DYNAMIXEL_HEADER + bytes((motor_id,)) + struct.pack("<H", len(body) + 2) + body
    return packet + struct.pack("<H", crc16(packet))


def read_parameters(protocol: BusProtocol, parameters: bytes) -> tuple[int, int]:
    """Return address and size of a read."""
    if protocol is BusProtocol.FEETECH:
        return parameters[0], parameters[1]
    address, size = struct.unpack("<HH", parameters[:4])
    return address, size


def write_parameters(protocol: BusProtocol, parameters: bytes) -> tuple[int, bytes]:
    """Return address and data of a write."""
    if protocol is BusProtocol.FEETECH:
        return parameters[0], parameters[1:]
    return int.from_bytes(parameters[:2], "little"), parameters[2:]


def sync_parameters(protocol: BusProtocol, parameters: bytes) -> SyncParameters:
    """Return address, size and the rest of a sync read or write."""
    used = 2 if protocol is BusProtocol.FEETECH else 4
    address, size = read_parameters(protocol, parameters)
    return SyncParameters(address, size, parameters[used:])


def feetech_checksum(packet: bytes) -> int:
    """Return the checksum of a packet that ends before its checksum."""
    return ~sum(packet[2:]) & 0xFF


def crc16(data: bytes) -> int:
    """Return Dynamixel's CRC-16: polynomial 0x8005, start 0, bits not reflected."""
    crc = 0
    for byte in data:
        crc = (crc << 8 & 0xFFFF) ^ _CRC_TABLE[crc >> 8 ^ byte]
    return crc


def _crc_of_byte(byte: int) -> int:
    crc = byte << 8
    for _ in range(8):
        crc = (crc << 1 ^ 0x8005 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


_CRC_TABLE = tuple(_crc_of_byte(byte) for byte in range(256))
