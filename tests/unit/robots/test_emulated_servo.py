"""Registers of emulated motors: EEPROM, offsets, limits, torque and alerts."""

from __future__ import annotations

import pytest

from proctor.robots.emulation.dynamixel_servo import ACCESS_ERROR, LIMIT_ERROR, DynamixelServo
from proctor.robots.emulation.feetech_servo import FeetechServo
from proctor.robots.emulation.servo import (
    OVERHEAT_ALERT,
    OVERLOAD_ALERT,
    VOLTAGE_ALERT,
    Motion,
    Servo,
)

UNLOCK, LOCK = (55, b"\0"), (55, b"\1")


def _position(servo: Servo) -> int:
    address, size = (56, 2) if isinstance(servo, FeetechServo) else (132, 4)
    return int.from_bytes(servo.read(address, size), "little", signed=size == 4)


def test_a_feetech_id_written_under_lock_is_lost_at_power_off() -> None:
    servo = FeetechServo(1)
    servo.write(5, b"\4")
    assert servo.id == 4
    servo.power_cycle()
    assert servo.id == 1


def test_a_feetech_id_written_unlocked_survives_and_lock_returns() -> None:
    servo = FeetechServo(1)
    servo.write(*UNLOCK)
    servo.write(5, b"\4")
    servo.power_cycle()
    assert servo.id == 4
    assert servo.read(55, 1) == b"\1"


def test_locking_does_not_store_what_was_written_under_lock() -> None:
    servo = FeetechServo(1)
    servo.write(31, b"\x10\0")
    servo.write(*UNLOCK)
    servo.write(*LOCK)
    servo.power_cycle()
    assert servo.homing_offset == 0


def test_ram_is_lost_at_power_off() -> None:
    servo = FeetechServo(1)
    servo.write(40, b"\1")
    servo.write(42, b"\0\4")
    servo.power_cycle()
    assert not servo.torque_is_on
    assert servo.get(servo.goal_position) == 0


@pytest.mark.parametrize(
    ("offset", "present"), [(b"\x10\0", 2032), (b"\x10\x08", 2064), (b"\0\0", 2048)]
)
def test_feetech_subtracts_the_offset(offset: bytes, present: int) -> None:
    servo = FeetechServo(1, ticks=2048)
    servo.write(31, offset)
    assert _position(servo) == present


def test_feetech_positions_wrap_within_one_turn() -> None:
    servo = FeetechServo(1, ticks=10)
    servo.write(31, b"\x20\0")
    assert _position(servo) == 4074


def test_dynamixel_adds_the_offset_and_reverses() -> None:
    servo = DynamixelServo(1, ticks=100)
    servo.write(20, (50).to_bytes(4, "little"))
    assert _position(servo) == 150
    servo.write(10, b"\1")
    assert _position(servo) == -50


def test_goals_are_clipped_to_the_limits_and_become_encoder_values() -> None:
    servo = FeetechServo(1)
    servo.write(31, b"\x10\0")
    servo.write(9, (1000).to_bytes(2, "little"))
    servo.write(42, (500).to_bytes(2, "little"))
    assert servo.goal_ticks() == 1016


def test_torque_on_holds_the_present_position() -> None:
    for servo in (FeetechServo(1, ticks=1234), DynamixelServo(1, ticks=1234)):
        servo.write(servo.torque_enable.address, b"\1")
        assert servo.drives
        assert servo.goal_ticks() == 1234


def test_velocity_mode_has_a_speed_and_no_goal() -> None:
    servo = FeetechServo(7)
    servo.write(33, b"\1")
    servo.write(46, (300 | 0x8000).to_bytes(2, "little"))
    assert servo.goal_ticks() is None
    assert servo.goal_ticks_per_s() == -300


def test_dynamixel_refuses_eeprom_under_torque_measurements_and_goals_beyond_limits() -> None:
    servo = DynamixelServo(1)
    assert servo.write(132, bytes(4)) == ACCESS_ERROR
    assert servo.write(116, (5000).to_bytes(4, "little")) == LIMIT_ERROR
    servo.write(64, b"\1")
    assert servo.write(7, b"\2") == ACCESS_ERROR
    assert servo.id == 1


def test_feetech_ignores_writes_to_measurements() -> None:
    servo = FeetechServo(1)
    assert servo.write(63, b"\x60") == 0
    assert servo.read(63, 1) == bytes((30,))


def test_movement_shows_in_velocity_load_and_moving() -> None:
    servo = FeetechServo(1)
    servo.observe(Motion(2000, ticks_per_s=-40.0, load=-0.25))
    assert int.from_bytes(servo.read(58, 2), "little") == 0x8000 | 40
    assert int.from_bytes(servo.read(60, 2), "little") == 0x400 | 250
    assert servo.read(66, 1) == b"\1"
    dynamixel = DynamixelServo(1)
    dynamixel.observe(Motion(2000, ticks_per_s=-156.33, load=0.5))
    assert int.from_bytes(dynamixel.read(128, 4), "little", signed=True) == -10
    assert dynamixel.read(122, 1) == b"\1"


def test_voltage_and_temperature_beyond_limits_show_in_the_error_byte() -> None:
    servo = FeetechServo(1)
    servo.set_supply(volts=3.0, celsius=90)
    assert servo.status_error() == VOLTAGE_ALERT | OVERHEAT_ALERT
    assert servo.read(65, 1) == bytes((VOLTAGE_ALERT | OVERHEAT_ALERT,))
    dynamixel = DynamixelServo(1)
    dynamixel.set_supply(volts=12.0, celsius=90)
    assert dynamixel.status_error() == 128
    assert dynamixel.read(70, 1) == bytes((OVERHEAT_ALERT,))


def test_an_overloaded_motor_stops_driving_until_torque_was_off() -> None:
    servo = FeetechServo(1)
    servo.write(40, b"\1")
    servo.alerts |= OVERLOAD_ALERT
    assert servo.status_error() == OVERLOAD_ALERT
    assert not servo.drives
    servo.write(40, b"\0")
    servo.write(40, b"\1")
    assert servo.drives


def test_a_registered_write_waits_for_action() -> None:
    servo = FeetechServo(1)
    servo.register_write(42, (77).to_bytes(2, "little"))
    assert servo.get(servo.goal_position) == 0
    servo.action()
    assert servo.get(servo.goal_position) == 77
