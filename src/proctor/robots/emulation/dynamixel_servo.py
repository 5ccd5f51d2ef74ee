"""Dynamixel X series (protocol 2.0): addresses and rules."""

from __future__ import annotations

from collections.abc import Mapping

from proctor.robots.buses.registers import BusProtocol
from proctor.robots.emulation.servo import (
    MOVING_TICKS_PER_S,
    MemoryField,
    Motion,
    Servo,
    model_number_bytes,
)

XL430, XL330_M288, XL330_M077 = 1060, 1200, 1190
"""Model numbers."""
ALERT_BIT = 128
"""Bit of the status packet's error byte: read Hardware_Error_Status."""
LIMIT_ERROR, ACCESS_ERROR = 6, 7

_MODEL = MemoryField(0, 2)
_DRIVE_MODE = MemoryField(10, 1)
_STATUS_LEVEL = MemoryField(68, 1)
_HARDWARE_ERROR = MemoryField(70, 1)
_MOVING, _CURRENT = MemoryField(122, 1), MemoryField(126, 2)
_VELOCITY, _POSITION = MemoryField(128, 4), MemoryField(132, 4)
_REVERSE = 1
"""Bit of Drive_Mode."""
_VELOCITY_MODE, _POSITION_MODE, _EXTENDED_MODE, _CURRENT_POSITION_MODE = 1, 3, 4, 5
_POSITION_MODES = (_POSITION_MODE, _EXTENDED_MODE, _CURRENT_POSITION_MODE)
_NOMINAL_GAIN = 800
_TICKS_PER_VELOCITY_UNIT = 0.229 * 4096 / 60
"""The unit is 0.229 rpm; this is ticks per second."""
_STALL_CURRENT = 1193
_FACTORY = {
    6: 46, 8: 1, 9: 250, 11: 3, 12: 255, 13: 2, 24: 10, 31: 72, 32: 140, 34: 60, 36: 0x75, 37: 3,
    38: 0xA9, 39: 4, 44: 0x09, 45: 1, 48: 0xFF, 49: 0x0F, 63: 52, 68: 2, 76: 0xE8, 77: 3,
    78: 100, 84: 0x20, 85: 3, 144: 120, 146: 30,
}  # fmt: skip


class DynamixelServo(Servo):
    """A Dynamixel of the X series; present position = encoder + homing offset."""

    protocol = BusProtocol.DYNAMIXEL
    bauds = (9_600, 57_600, 115_200, 1_000_000, 2_000_000, 3_000_000, 4_000_000)
    ram_start = 64
    id_register = MemoryField(7, 1)
    baud_register = MemoryField(8, 1)
    offset_register = MemoryField(20, 4)
    min_limit = MemoryField(52, 4)
    max_limit = MemoryField(48, 4)
    mode_register = MemoryField(11, 1)
    torque_enable = MemoryField(64, 1)
    goal_position = MemoryField(116, 4)
    goal_velocity = MemoryField(104, 4)
    gain_register = MemoryField(84, 2)
    voltage = MemoryField(144, 2)
    voltage_limits = (MemoryField(34, 2), MemoryField(32, 2))
    temperature = MemoryField(146, 1)
    temperature_limit = MemoryField(31, 1)
    read_only = (range(7), range(69, 71), range(120, 147))

    def __init__(
        self,
        motor_id: int,
        *,
        model_number: int = XL330_M288,
        ticks: int = 2048,
        registers: Mapping[int, int] | None = None,
    ) -> None:
        factory = {**_FACTORY, **model_number_bytes(_MODEL, model_number), 7: motor_id}
        super().__init__(factory if registers is None else registers, ticks=ticks)

    @property
    def homing_offset(self) -> int:
        """Signed homing offset: two's complement of four bytes."""
        return _signed(self.get(self.offset_register), self.offset_register.size)

    @property
    def gain(self) -> float:
        """Position_P_Gain as a multiple of 800."""
        return self.get(self.gain_register) / _NOMINAL_GAIN

    @property
    def ping_data(self) -> bytes:
        """Model number and firmware, the answer to a ping."""
        return bytes(self.memory[0:2]) + bytes(self.memory[6:7])

    def present_ticks(self) -> int:
        """Return the encoder, reversed if Drive_Mode says so, plus the homing offset."""
        return self._direction * self.motion.ticks + self.homing_offset

    def goal_ticks(self) -> int | None:
        """Return the goal as an encoder value; None in current, velocity and PWM modes."""
        if self.get(self.mode_register) not in _POSITION_MODES:
            return None
        goal = _signed(self.get(self.goal_position), self.goal_position.size)
        return self._direction * (goal - self.homing_offset)

    def goal_ticks_per_s(self) -> float | None:
        """Return Goal_Velocity in mode 1."""
        if self.get(self.mode_register) != _VELOCITY_MODE:
            return None
        goal = _signed(self.get(self.goal_velocity), self.goal_velocity.size)
        return self._direction * goal * _TICKS_PER_VELOCITY_UNIT

    @property
    def is_reversed(self) -> bool:
        """Whether Drive_Mode reverses the direction."""
        return bool(self.get(_DRIVE_MODE) & _REVERSE)

    @property
    def _direction(self) -> int:
        return -1 if self.is_reversed else 1

    @property
    def _eeprom_is_unlocked(self) -> bool:
        return True

    @property
    def _answers_writes(self) -> bool:
        return self.get(_STATUS_LEVEL) == 2

    def _refusal(self, address: int, data: bytes) -> int:
        """Refuse measurements, EEPROM while torque is on, and goals beyond the limits."""
        if self._is_read_only(address, len(data)):
            return ACCESS_ERROR
        if address < self.ram_start and self.torque_is_on:
            return ACCESS_ERROR
        if address == self.torque_enable.address and self.alerts and data[0]:
            return ACCESS_ERROR
        if address == self.goal_position.address and len(data) == self.goal_position.size:
            goal = _signed(int.from_bytes(data, "little"), self.goal_position.size)
            within = self.get(self.min_limit) <= goal <= self.get(self.max_limit)
            if self.get(self.mode_register) == _POSITION_MODE and not within:
                return LIMIT_ERROR
        return 0

    def _measure(self, motion: Motion) -> None:
        direction = self._direction
        load = min(max(motion.load, -1.0), 1.0)
        speed = motion.ticks_per_s / _TICKS_PER_VELOCITY_UNIT
        self.put(_VELOCITY, direction * round(speed))
        self.put(_CURRENT, direction * round(load * _STALL_CURRENT))
        self.put(_MOVING, int(abs(motion.ticks_per_s) > MOVING_TICKS_PER_S))

    def _refresh(self) -> None:
        self.put(_POSITION, self.present_ticks())
        self.put(_HARDWARE_ERROR, self.alerts | self._measured_alerts())

    def _encoded_goal(self, ticks: int) -> int:
        return ticks

    def _error_byte(self, alerts: int) -> int:
        return ALERT_BIT if alerts else 0


def _signed(value: int, size: int) -> int:
    sign = 1 << (8 * size - 1)
    return (value ^ sign) - sign
