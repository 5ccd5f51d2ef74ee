"""Packets on the emulated bus, and faults of its port."""

from __future__ import annotations

import pytest
import serial

from proctor.robots.buses.registers import BusProtocol
from proctor.robots.emulation.dynamixel_servo import DynamixelServo
from proctor.robots.emulation.emulated_bus import EmulatedBus, EmulatedPort, Fault, FaultKind
from proctor.robots.emulation.feetech_servo import FeetechServo
from proctor.robots.emulation.instruction_packets import crc16, feetech_checksum, status_packet

PING_1, PONG_1 = bytes.fromhex("ffff010201fb"), bytes.fromhex("ffff010200fc")
READ_BOTH = bytes.fromhex("fffffe06823802") + bytes((1, 2))
READ_BOTH += bytes((feetech_checksum(READ_BOTH),))


def _feetech(*parts: int) -> bytes:
    packet = b"\xff\xff" + bytes(parts)
    return packet + bytes((feetech_checksum(packet),))


def _answer(motor_id: int, *data: int, error: int = 0) -> bytes:
    return status_packet(BusProtocol.FEETECH, motor_id, error, bytes(data))


@pytest.fixture
def bus() -> EmulatedBus:
    return EmulatedBus([FeetechServo(1, ticks=500), FeetechServo(2, ticks=1000)])


@pytest.fixture
def port(bus: EmulatedBus) -> EmulatedPort:
    return EmulatedPort(bus)


def test_packets_may_come_in_pieces_and_after_noise(port: EmulatedPort) -> None:
    port.write(b"\x12\xff" + PING_1[:3])
    assert port.in_waiting == 0
    port.write(PING_1[3:] + PING_1)
    assert port.read(100) == PONG_1 + PONG_1


def test_a_packet_with_a_wrong_checksum_is_ignored(port: EmulatedPort) -> None:
    port.write(PING_1[:-1] + b"\0" + PING_1)
    assert port.read(100) == PONG_1


def test_motors_answer_only_at_their_baud_rate(port: EmulatedPort) -> None:
    port.baudrate = 57_600
    port.write(PING_1)
    assert port.read(100) == b""


def test_a_changed_baud_rate_applies_at_once(port: EmulatedPort, bus: EmulatedBus) -> None:
    port.write(_feetech(1, 4, 3, 6, 5))
    assert port.read(100) == PONG_1
    port.write(PING_1)
    assert port.read(100) == b""
    port.baudrate = 57_600
    port.write(PING_1)
    assert port.read(100) == PONG_1


def test_a_broadcast_write_reaches_all_and_gets_no_answer(
    port: EmulatedPort, bus: EmulatedBus
) -> None:
    port.write(_feetech(0xFE, 4, 3, 40, 1))
    assert port.read(100) == b""
    assert all(servo.torque_is_on for servo in bus.servos)


def test_registered_writes_start_together_at_action(port: EmulatedPort, bus: EmulatedBus) -> None:
    for motor_id in (1, 2):
        port.write(_feetech(motor_id, 4, 4, 40, 1))
    assert not any(servo.torque_is_on for servo in bus.servos)
    port.write(_feetech(0xFE, 2, 5))
    assert all(servo.torque_is_on for servo in bus.servos)


def test_a_dropped_answer_leaves_the_others(port: EmulatedPort, bus: EmulatedBus) -> None:
    bus.inject(Fault(FaultKind.DROP, motor_id=1))
    port.write(READ_BOTH)
    assert port.read(100) == _answer(2, 0xE8, 0x03)
    port.write(READ_BOTH)
    assert port.read(100) == _answer(1, 0xF4, 0x01) + _answer(2, 0xE8, 0x03)


def test_a_corrupt_answer_has_a_wrong_checksum(port: EmulatedPort, bus: EmulatedBus) -> None:
    bus.inject(Fault(FaultKind.CORRUPT, motor_id=1, skip=1))
    port.write(PING_1)
    assert port.read(100) == PONG_1
    port.write(PING_1)
    received = port.read(100)
    assert received[:-1] == PONG_1[:-1]
    assert received[-1] != PONG_1[-1]


def test_a_late_answer_survives_emptying_and_precedes_the_next(
    port: EmulatedPort, bus: EmulatedBus
) -> None:
    bus.inject(Fault(FaultKind.LATE, motor_id=1))
    port.write(READ_BOTH)
    assert port.read(100) == _answer(2, 0xE8, 0x03)
    port.reset_input_buffer()
    port.write(PING_1)
    assert port.read(100) == _answer(1, 0xF4, 0x01) + PONG_1


def test_error_bits_and_noise(port: EmulatedPort, bus: EmulatedBus) -> None:
    bus.inject(Fault(FaultKind.ERROR, error=32))
    port.write(PING_1)
    assert port.read(100) == _answer(1, error=32)
    bus.inject(Fault(FaultKind.GARBAGE, noise=b"\x01\x02"))
    port.write(PING_1)
    assert port.read(100) == b"\x01\x02" + PONG_1


def test_a_burnt_motor_never_answers(port: EmulatedPort, bus: EmulatedBus) -> None:
    bus.burn(2)
    port.write(READ_BOTH)
    assert port.read(100) == _answer(1, 0xF4, 0x01)


def test_an_unplugged_bus_raises_as_pyserial(port: EmulatedPort, bus: EmulatedBus) -> None:
    bus.unplug()
    for use in (lambda: port.write(PING_1), lambda: port.read(1), port.reset_input_buffer):
        with pytest.raises(serial.SerialException):
            use()
    port.close()
    bus.plug_in()
    again = EmulatedPort(bus)
    again.write(PING_1)
    assert again.read(100) == PONG_1


def test_a_closed_port_raises(port: EmulatedPort) -> None:
    port.close()
    assert not port.is_open
    with pytest.raises(serial.PortNotOpenError):
        port.read(1)


def test_dynamixel_reboot_and_stuffing() -> None:
    servo = DynamixelServo(6, ticks=-131073)
    servo.write(68, b"\2")
    servo.write(64, b"\1")
    bus = EmulatedBus([servo])
    answer = bus.receive(bytes.fromhex("fffffd0006070002840004000f65"), None)
    assert answer == bytes.fromhex("fffffd000609005500fffffdfdffb0be")
    reboot = bytes.fromhex("fffffd0006030008")
    bus.receive(reboot + crc16(reboot).to_bytes(2, "little"), None)
    assert not servo.torque_is_on


def test_servos_of_two_protocols_are_refused() -> None:
    with pytest.raises(ValueError, match="protocol"):
        EmulatedBus([FeetechServo(1), DynamixelServo(2)])
