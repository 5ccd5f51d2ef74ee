"""Teleoperators that move the hand: LeRobot's deltas, or joint targets of an SO-101 by kinematics.

LeRobot's keyboard_ee and gamepad return ``delta_x`` and so on, which its arms do not understand
without a script of the user's. Attached to an SO-100 or SO-101 in degrees, ours solve the inverse
kinematics and return joint targets.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from proctor.benchmarks.so101.kinematics import (
    CHANNELS,
    GRIPPER,
    JOINT_NAMES,
    forward,
    from_units,
    inverse,
    to_units,
    unit_range,
)
from proctor.errors import DeviceNotConnected, UsageError
from proctor.features import Array
from proctor.robots.base import Action, Clock, RealClock, Robot, Teleoperator, Unit

SO101_UNITS: Mapping[str, Unit] = {
    channel: Unit.PERCENT if channel.startswith(GRIPPER) else Unit.DEGREES for channel in CHANNELS
}
"""Channels and units of an SO-100 or SO-101 with ``use_degrees``."""
GRIPPER_CLOSE, GRIPPER_STAY, GRIPPER_OPEN = 0, 1, 2
"""LeRobot's values of the gripper's channel."""
GRIPPER_PERCENT_PER_S = 100.0
_LONGEST_STEP_S = 0.1
"""After a pause the hand moves no further than in this time."""
_IK_STEPS = 8
"""The hand moves millimetres in a cycle, so few steps suffice, and the loop must not wait."""
_MOST_ERROR_M = 0.01
"""A pose that the arm misses by more is out of reach: the hand stays."""


@dataclass(frozen=True)
class HandMotion:
    """What the person wants: directions from -1 to 1 in the base's frame, and the gripper."""

    forward: float = 0.0
    left: float = 0.0
    up: float = 0.0
    gripper: int = GRIPPER_STAY


class EndEffectorJog:
    """Turns motions of the hand into joint targets of an SO-101."""

    def __init__(self, robot: Robot, speed_m_s: float) -> None:
        self._robot = robot
        self._speed = speed_m_s
        self._targets: Array | None = None
        self._moved_at = 0.0

    def restart(self) -> None:
        """Begin anew at the pose that the robot has at the next ``move``."""
        self._targets = None

    def move(self, motion: HandMotion) -> Action:
        """Return the joint targets after ``motion`` since the last call."""
        now = self._robot.clock.now()
        if self._targets is None:
            observed = self._robot.get_observation()
            self._targets = np.array([observed[channel] for channel in CHANNELS], np.float64)
            self._moved_at = now
        seconds = min(now - self._moved_at, _LONGEST_STEP_S)
        self._moved_at = now
        step = self._speed * seconds * np.array([motion.forward, motion.left, motion.up])
        if step.any():
            self._targets[:-1] = moved_hand(self._targets, step)
        change = (motion.gripper - GRIPPER_STAY) * GRIPPER_PERCENT_PER_S * seconds
        self._targets[-1] = np.clip(self._targets[-1] + change, *unit_range(GRIPPER))
        return dict(zip(CHANNELS, map(float, self._targets), strict=True))


def moved_hand(targets: Array, step: Array, bounds: tuple[Array, Array] | None = None) -> Array:
    """Return the arm's targets with the hand moved by ``step``; unchanged if it is out of reach.

    ``bounds`` are the lowest and highest position of the hand in metres.
    """
    angles = from_units(targets)
    arm = np.array([angles[name] for name in JOINT_NAMES[:-1]])
    pose = forward(arm)
    pose[:3, 3] += step
    if bounds is not None:
        pose[:3, 3] = np.clip(pose[:3, 3], *bounds)
    solution = inverse(pose, arm, max_steps=_IK_STEPS)
    if solution.position_error_m > _MOST_ERROR_M:
        return targets[:-1]
    solved = dict(zip(JOINT_NAMES, (*solution.angles, 0.0), strict=True))
    return to_units(solved)[:-1].astype(np.float64)


class EndEffectorTeleoperator(Teleoperator):
    """Base class of controllers that move the hand."""

    def __init__(self, *, use_gripper: bool, speed_m_s: float) -> None:
        self.clock: Clock = RealClock()
        self._use_gripper = use_gripper
        self._speed_m_s = speed_m_s
        self._jog: EndEffectorJog | None = None

    @abstractmethod
    def _motion(self) -> HandMotion:
        """Return what the person wants now."""

    @abstractmethod
    def _deltas(self, motion: HandMotion) -> tuple[float, float, float]:
        """Return LeRobot's delta_x, delta_y and delta_z, whose directions differ by controller."""

    @property
    def action_features(self) -> Mapping[str, Unit]:
        """Joint targets of the attached SO-101; else LeRobot's deltas."""
        if self._jog is not None:
            return SO101_UNITS
        names = ("delta_x", "delta_y", "delta_z", *(("gripper",) if self._use_gripper else ()))
        return dict.fromkeys(names, Unit.OTHER)

    def attach(self, robot: Robot) -> None:
        """Move the hand of ``robot`` from now on."""
        self.clock = robot.clock
        if dict(robot.action_features) == SO101_UNITS:
            self._jog = EndEffectorJog(robot, self._speed_m_s)
        elif not set(self.action_features) <= set(robot.action_features):
            raise UsageError(
                f"--teleop.type={self.name} moves the hand of an SO-100 or SO-101 in degrees; "
                f"{robot.name} has {', '.join(robot.action_features)}",
                code="teleop.wrong-robot",
            )

    def start_episode(self) -> None:
        """Begin at the pose that the robot has."""
        if self._jog is not None:
            self._jog.restart()

    def get_action(self) -> Action:
        """Return joint targets of the attached SO-101; else LeRobot's deltas."""
        if not self.is_connected:
            raise DeviceNotConnected(f"{self.name} is not connected", code="teleop.not-connected")
        motion = self._motion()
        if self._jog is not None:
            return self._jog.move(motion)
        x, y, z = self._deltas(motion)
        deltas = {"delta_x": x, "delta_y": y, "delta_z": z}
        return deltas | ({"gripper": float(motion.gripper)} if self._use_gripper else {})
