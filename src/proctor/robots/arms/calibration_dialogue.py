"""Calibrates an arm with a person's help, in LeRobot's steps.

Positions are converted to encoder values, so no register has to be reset first: the motors keep
their old calibration until the new one is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from proctor.errors import RobotError
from proctor.robots.base import Clock, Operator
from proctor.robots.buses.calibration import (
    Calibration,
    MotorCalibration,
    RangeOfMotion,
    calibrate_motor,
    encoder_position,
    half_turn_offset,
)
from proctor.robots.buses.motor_bus import MotorBus
from proctor.robots.buses.registers import Motor

_READ_EVERY_S = 0.02
_RETRIES = 5
"""As LeRobot: a person is moving the cables."""


@dataclass(frozen=True)
class CalibrationPlan:
    """What an arm's calibration consists of."""

    device: str
    """How the person knows it: "my_arm so_follower"."""
    joints: tuple[str, ...]
    """Motors with positions; the others get no offset and the whole turn."""
    full_turn: tuple[str, ...]
    """Joints without end stops: homed, and their range is the whole turn."""
    drive_modes: Mapping[str, int] = field(default_factory=dict)
    """New Drive_Mode of Dynamixel motors; 1 reverses the direction, others have 0."""

    @property
    def swept(self) -> tuple[str, ...]:
        """Joints that are moved from end to end."""
        return tuple(name for name in self.joints if name not in self.full_turn)


def measure_calibration(
    bus: MotorBus, plan: CalibrationPlan, operator: Operator, clock: Clock
) -> dict[str, MotorCalibration]:
    """Ask the person to move the arm and return the new calibration; write nothing."""
    encoders = _Encoders(bus, plan, bus.read_calibration())
    operator.ask(
        f"{plan.device}: put every joint half-way between its end stops, then press Enter: "
    )
    middle = encoders.read(plan.joints)
    motion = RangeOfMotion({name: bus.motors[name].model.resolution for name in plan.swept})
    motion.add({name: middle[name] for name in plan.swept})
    operator.tell(
        "Now move each joint slowly from one end stop to the other (not "
        f"{', '.join(plan.full_turn)}). Press Enter when all have moved."
    )
    while True:
        motion.add(encoders.read(plan.swept))
        operator.show_table(("motor", "min", "now", "max"), motion.rows())
        if operator.pressed_enter():
            break
        clock.sleep_until(clock.now() + _READ_EVERY_S)
    _check_motion(motion, bus)
    return {
        name: _calibrate(name, motor, plan, middle, motion) for name, motor in bus.motors.items()
    }


class _Encoders:
    """Reads encoder values in the planned direction: positions without the motors' offsets."""

    def __init__(self, bus: MotorBus, plan: CalibrationPlan, held: Calibration) -> None:
        self._bus, self._held = bus, held
        self._reversed = {
            name for name in plan.joints if plan.drive_modes.get(name, 0) != held[name].drive_mode
        }

    def read(self, names: tuple[str, ...]) -> dict[str, int]:
        present = self._bus.sync_read(
            "Present_Position", names, normalize=False, retries=_RETRIES, raise_alerts=False
        )
        return {name: self._encoder(name, int(value)) for name, value in present.items()}

    def _encoder(self, name: str, present: int) -> int:
        model = self._bus.motors[name].model
        encoder = encoder_position(present, self._held[name].homing_offset, model)
        return -encoder if name in self._reversed else encoder


def _check_motion(motion: RangeOfMotion, bus: MotorBus) -> None:
    kept = "the old calibration is kept"
    if unmoved := motion.unmoved():
        raise RobotError(f"{', '.join(unmoved)} did not move; {kept}", code="robot.range-empty")
    wide = [
        name
        for name, low in motion.lowest.items()
        if motion.highest[name] - low >= bus.motors[name].model.resolution
    ]
    if wide:
        raise RobotError(
            f"{', '.join(wide)} moved by more than one turn; {kept}", code="robot.range-too-wide"
        )


def _calibrate(
    name: str,
    motor: Motor,
    plan: CalibrationPlan,
    middle: Mapping[str, int],
    motion: RangeOfMotion,
) -> MotorCalibration:
    drive_mode = plan.drive_modes.get(name, 0)
    if name in plan.swept:
        sweep = (motion.lowest[name], motion.highest[name])
        return replace(calibrate_motor(motor, middle[name], sweep), drive_mode=drive_mode)
    offset = half_turn_offset(middle[name], motor.model) if name in plan.full_turn else 0
    return MotorCalibration(motor.id, drive_mode, offset, 0, motor.model.resolution - 1)
