"""Conversion between encoder ticks and units, with LeRobot's arithmetic.

Ticks are truncated toward zero, as LeRobot does, so that both send the same bytes.
"""

from __future__ import annotations

from proctor.errors import UsageError
from proctor.robots.base import Unit
from proctor.robots.buses.calibration import MotorCalibration
from proctor.robots.buses.registers import BusProtocol, Motor

NORMALISED_REGISTERS = ("Goal_Position", "Present_Position")


class PositionScale:
    """Converts the positions of one calibrated motor."""

    def __init__(self, name: str, motor: Motor, calibration: MotorCalibration) -> None:
        """Prepare the conversion."""
        self._low, self._high = calibration.range_min, calibration.range_max
        if self._low == self._high:
            raise UsageError(
                f"the calibrated range of {name} is empty (both ends are {self._low}); "
                "run proctor calibrate",
                code="robot.calibration-empty-range",
            )
        self._unit = motor.unit
        self._span = self._high - self._low
        self._last_tick = motor.model.resolution - 1
        self._middle = (self._low + self._high) / 2
        self._reversed = (
            bool(calibration.drive_mode) and motor.model.protocol is not BusProtocol.DYNAMIXEL
        )

    def to_unit(self, ticks: int) -> float:
        """Return ticks in the motor's unit; percentages are clipped to the range."""
        if self._unit is Unit.DEGREES:
            return (ticks - self._middle) * 360 / self._last_tick
        bounded = min(self._high, max(self._low, ticks))
        if self._unit is Unit.SIGNED_PERCENT:
            value = (bounded - self._low) / self._span * 200 - 100
            return -value if self._reversed else value
        value = (bounded - self._low) / self._span * 100
        return 100 - value if self._reversed else value

    def to_ticks(self, value: float) -> int:
        """Return a value of the motor's unit in ticks; percentages are clipped to the range."""
        if self._unit is Unit.DEGREES:
            return int(value * self._last_tick / 360 + self._middle)
        if self._unit is Unit.SIGNED_PERCENT:
            value = -value if self._reversed else value
            bounded = min(100.0, max(-100.0, value))
            return int((bounded + 100) / 200 * self._span + self._low)
        value = 100 - value if self._reversed else value
        bounded = min(100.0, max(0.0, value))
        return int(bounded / 100 * self._span + self._low)
