"""Servos and joints of the arms that can be simulated, with a valid calibration in the motors.

so_follower    SO-101; its joints are those of the MuJoCo world of ``benchmarks/so101``
so_leader      SO-101 leader without physics
koch_follower, koch_leader, lekiwi    without physics
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from proctor.benchmarks.so101.kinematics import JOINTS, from_units
from proctor.benchmarks.so101.world import HOME, So101World
from proctor.robots.emulation.dynamixel_servo import XL330_M077, XL330_M288, XL430, DynamixelServo
from proctor.robots.emulation.feetech_servo import FeetechServo
from proctor.robots.emulation.joints import KinematicJoints
from proctor.robots.emulation.servo import TICKS_PER_TURN, MemoryField, Servo
from proctor.robots.emulation.simulated_arm import RADIANS_PER_TICK, ZERO_TICKS

_GREATEST_TORQUE = 2.94
"""Of the world's servos, in N m."""
_WAVE_RAD = 0.15
"""Amplitude with which a person moves a leader."""
_SWEEP_S = 6.0
_FULL_TURN_JOINT = "wrist_roll"
_WHEELS = ("base_left_wheel", "base_back_wheel", "base_right_wheel")
_BAUD_1M_DYNAMIXEL = 3
_DRIVE_MODE = MemoryField(10, 1)
_EXTENDED_MODE = 4
_SO_RANGES = {joint.name: (joint.low, joint.high) for joint in JOINTS}
_KOCH_RANGES = dict.fromkeys(_SO_RANGES, (-math.pi / 2, math.pi / 2))


@dataclass(frozen=True)
class ArmModel:
    """Joints of a kind of arm."""

    ranges: Mapping[str, tuple[float, float]]
    """End stops in radians, by motor in the order of ids 1, 2, …; (0, 0): a wheel."""
    dynamixel_models: tuple[int, ...] = ()
    """Model numbers; empty: all motors are STS3215."""
    reversed: tuple[str, ...] = ()
    """Dynamixel motors with Drive_Mode 1."""
    home: Mapping[str, float] = field(default_factory=dict)
    is_leader: bool = False

    def wave(self, seconds: float) -> dict[str, float]:
        """Return the pose of a leader that a person moves to and fro about its home pose."""
        return {
            name: self.home.get(name, 0.0) + _WAVE_RAD * math.sin(2 * math.pi * seconds / period)
            for period, name in enumerate(self.ranges, start=3)
        }

    def sweep(self, seconds: float) -> dict[str, float]:
        """Return the pose of an arm whose joints a person moves from end to end and back."""
        share = math.sin(2 * math.pi * seconds / _SWEEP_S)
        return {
            name: (low + high) / 2 + share * (high - low) / 2
            for name, (low, high) in self.ranges.items()
        }

    def servos(self) -> dict[str, Servo]:
        """Return motors that hold a valid calibration."""
        return {
            name: self._servo(number, name, *ends)
            for number, (name, ends) in enumerate(self.ranges.items(), start=1)
        }

    def joints(self) -> KinematicJoints:
        """Return joints without physics in the home pose."""
        return KinematicJoints(self.ranges, self.home)

    def _servo(self, motor_id: int, name: str, low: float, high: float) -> Servo:
        servo: Servo
        if self.dynamixel_models:
            number = self.dynamixel_models[motor_id - 1]
            servo = DynamixelServo(motor_id, model_number=number)
            servo.store(servo.baud_register, _BAUD_1M_DYNAMIXEL)
            servo.store(servo.mode_register, _EXTENDED_MODE)
        else:
            servo = FeetechServo(motor_id)
        if name in self.reversed:
            servo.store(_DRIVE_MODE, 1)
            servo.store(servo.offset_register, 2 * ZERO_TICKS)
            low, high = -high, -low
        if not name.endswith("wheel"):
            first, last = _limit_ticks(name, low, high)
            servo.store(servo.min_limit, first)
            servo.store(servo.max_limit, last)
        return servo


def _limit_ticks(name: str, low: float, high: float) -> tuple[int, int]:
    """Return the calibrated range; a joint without end stops has the turn, with 0 in its middle."""
    if name.endswith(_FULL_TURN_JOINT):
        return 1, TICKS_PER_TURN - 1
    return ZERO_TICKS + round(low / RADIANS_PER_TICK), ZERO_TICKS + round(high / RADIANS_PER_TICK)


_SO_HOME = from_units(np.array(HOME))
ARM_MODELS = {
    "so_follower": ArmModel(_SO_RANGES, home=_SO_HOME),
    "so_leader": ArmModel(_SO_RANGES, home=_SO_HOME, is_leader=True),
    "koch_follower": ArmModel(_KOCH_RANGES, (XL430,) * 2 + (XL330_M288,) * 4),
    "koch_leader": ArmModel(
        _KOCH_RANGES, (XL330_M077,) * 6, reversed=("elbow_flex",), is_leader=True
    ),
    "lekiwi": ArmModel(
        {f"arm_{name}": ends for name, ends in _SO_RANGES.items()}
        | dict.fromkeys(_WHEELS, (0.0, 0.0))
    ),
}
"""Models by ``Device.name``."""


class WorldJoints:
    """The joints of the SO-101 in MuJoCo."""

    def __init__(self, world: So101World) -> None:
        self.world = world

    def angles(self) -> Mapping[str, float]:
        """Return the angles."""
        return self.world.angles()

    def velocities(self) -> Mapping[str, float]:
        """Return the velocities in rad/s."""
        return self.world.velocities()

    def loads(self) -> Mapping[str, float]:
        """Return the torques as parts of the greatest one."""
        return {name: force / _GREATEST_TORQUE for name, force in self.world.torques().items()}

    def set_target(self, joint: str, angle: float) -> None:
        """Set a servo's target."""
        self.world.set_target(joint, angle)

    def set_speed(self, joint: str, speed: float) -> None:
        """Hold still: the joints of this arm have end stops, and no driver uses velocity mode."""
        self.world.set_target(joint, self.world.angles()[joint])

    def set_gain(self, joint: str, gain: float) -> None:
        """Set a servo's position gain."""
        self.world.set_gain(joint, gain)

    def set_torque(self, joint: str, *, on: bool) -> None:
        """Switch a servo; a limp joint sags."""
        self.world.set_torque(joint, on=on)

    def set_angle(self, joint: str, angle: float) -> None:
        """Put a joint at an angle."""
        self.world.set_angle(joint, angle)

    def step(self, seconds: float) -> None:
        """Step the physics of arm, cube and bin."""
        self.world.step(seconds)
