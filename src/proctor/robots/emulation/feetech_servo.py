"""Feetech STS3215 (protocol 0): addresses and rules."""

from __future__ import annotations

from collections.abc import Mapping

from proctor.robots.buses.registers import BusProtocol
from proctor.robots.emulation.servo import (
    MOVING_TICKS_PER_S,
    OVERLOAD_ALERT,
    TICKS_PER_TURN,
    MemoryField,
    Motion,
    Servo,
    model_number_bytes,
)

STS3215 = 777
"""Model number."""

_MODEL = MemoryField(3, 2)
_LEVEL = MemoryField(8, 1)
_PHASE = MemoryField(18, 1)
_LOCK = MemoryField(55, 1)
_POSITION, _VELOCITY, _LOAD = MemoryField(56, 2), MemoryField(58, 2), MemoryField(60, 2)
_STATUS, _MOVING, _CURRENT = MemoryField(65, 1), MemoryField(66, 1), MemoryField(69, 2)
_MULTI_TURN_PHASE = 0x10
"""Bit of Phase: positions count on over several turns."""
_FACTORY_START = 80
_NOMINAL_GAIN = 16
"""P_Coefficient that LeRobot gives the SO arms; factory: 32."""
_STALL_CURRENT = 415
"""2.7 A in units of 6.5 mA."""
_FACTORY = {
    0: 3, 1: 10, 7: 250, 8: 1, 11: 0xFF, 12: 0x0F, 13: 70, 14: 80, 15: 40, 16: 0xE8, 17: 3,
    18: 12, 19: 44, 20: 47, 21: 32, 22: 32, 28: 0xF4, 29: 1, 30: 1, 34: 20, 35: 200, 36: 80,
    37: 10, 38: 200, 39: 10, 48: 0xE8, 49: 3, 55: 1, 62: 74, 63: 30, 85: 254,
}  # fmt: skip


class FeetechServo(Servo):
    """An STS3215; present position = encoder - homing offset."""

    protocol = BusProtocol.FEETECH
    bauds = (1_000_000, 500_000, 250_000, 128_000, 115_200, 57_600, 38_400, 19_200)
    ram_start = 40
    id_register = MemoryField(5, 1)
    baud_register = MemoryField(6, 1)
    offset_register = MemoryField(31, 2)
    min_limit = MemoryField(9, 2)
    max_limit = MemoryField(11, 2)
    mode_register = MemoryField(33, 1)
    torque_enable = MemoryField(40, 1)
    goal_position = MemoryField(42, 2)
    goal_velocity = MemoryField(46, 2)
    gain_register = MemoryField(21, 1)
    voltage = MemoryField(62, 1)
    voltage_limits = (MemoryField(15, 1), MemoryField(14, 1))
    temperature = MemoryField(63, 1)
    temperature_limit = MemoryField(13, 1)
    read_only = (range(5), range(56, 67), range(69, 71))

    def __init__(
        self,
        motor_id: int,
        *,
        model_number: int = STS3215,
        ticks: int = 2048,
        registers: Mapping[int, int] | None = None,
    ) -> None:
        factory = {**_FACTORY, **model_number_bytes(_MODEL, model_number), 5: motor_id}
        super().__init__(factory if registers is None else registers, ticks=ticks)

    @property
    def homing_offset(self) -> int:
        """Signed homing offset: bit 11 is the sign."""
        return _signed(self.get(self.offset_register), sign_bit=11)

    @property
    def gain(self) -> float:
        """P_Coefficient as a multiple of 16."""
        return self.get(self.gain_register) / _NOMINAL_GAIN

    def present_ticks(self) -> int:
        """Return the encoder less the homing offset, within one turn unless Phase says else."""
        ticks = self.motion.ticks - self.homing_offset
        return ticks if self._counts_turns else ticks % TICKS_PER_TURN

    def goal_ticks(self) -> int | None:
        """Return the goal as an encoder value; limits of 0 and 0 mean no limits."""
        if self.get(self.mode_register) != 0:
            return None
        goal = _signed(self.get(self.goal_position), sign_bit=15)
        low, high = self.get(self.min_limit), self.get(self.max_limit)
        if high > low:
            goal = min(max(goal, low), high)
        goal += self.homing_offset
        if self._counts_turns:
            return goal
        # One turn: the motor goes to the encoder value without crossing the encoder's seam.
        return goal % TICKS_PER_TURN

    def goal_ticks_per_s(self) -> float | None:
        """Return Goal_Velocity in mode 1."""
        if self.get(self.mode_register) != 1:
            return None
        return float(_signed(self.get(self.goal_velocity), sign_bit=15))

    def write(self, address: int, data: bytes) -> int:
        """Execute a write; writes to read-only registers are ignored without an error.

        Factory addresses from 80 survive a power cycle as EEPROM does.
        """
        if self._is_read_only(address, len(data)):
            return 0
        error = super().write(address, data)
        if not error and address >= _FACTORY_START and self._eeprom_is_unlocked:
            self._keep(address, len(data))
        return error

    def power_cycle(self) -> None:
        """Switch the supply off and on; the motor starts with Lock = 1."""
        factory = self._stored[_FACTORY_START:]
        super().power_cycle()
        self.memory[_FACTORY_START:] = factory
        self.put(_LOCK, 1)

    @property
    def _counts_turns(self) -> bool:
        return bool(self.get(_PHASE) & _MULTI_TURN_PHASE)

    @property
    def _eeprom_is_unlocked(self) -> bool:
        return self.get(_LOCK) == 0

    @property
    def _answers_writes(self) -> bool:
        return self.get(_LEVEL) != 0

    def _refusal(self, address: int, data: bytes) -> int:
        """Accept every write; the motor clips goals when it moves."""
        return 0

    def _measure(self, motion: Motion) -> None:
        load = round(1000 * min(max(motion.load, -1.0), 1.0))
        self.put(_VELOCITY, _sign_magnitude(round(motion.ticks_per_s), sign_bit=15))
        self.put(_LOAD, _sign_magnitude(load, sign_bit=10))
        self.put(_CURRENT, _sign_magnitude(load * _STALL_CURRENT // 1000, sign_bit=15))
        self.put(_MOVING, int(abs(motion.ticks_per_s) > MOVING_TICKS_PER_S))

    def _refresh(self) -> None:
        self.put(_POSITION, _sign_magnitude(self.present_ticks(), sign_bit=15))
        self.put(_STATUS, self.status_error())

    def _encoded_goal(self, ticks: int) -> int:
        return _sign_magnitude(ticks, sign_bit=15)

    def _error_byte(self, alerts: int) -> int:
        return alerts

    def _torque_went_off(self) -> None:
        """Clear an overload, as the motor does when torque is switched off."""
        self.alerts &= ~OVERLOAD_ALERT


def _signed(value: int, *, sign_bit: int) -> int:
    magnitude = value & ((1 << sign_bit) - 1)
    return -magnitude if value >> sign_bit & 1 else magnitude


def _sign_magnitude(value: int, *, sign_bit: int) -> int:
    magnitude = min(abs(value), (1 << sign_bit) - 1)
    return magnitude | (1 << sign_bit) if value < 0 else magnitude
