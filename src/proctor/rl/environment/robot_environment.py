"""A robot as an environment of online learning.

JointDriver   actions are joint targets in the robot's units
HandDriver    actions are steps of the hand and a gripper command, as HIL-SERL has them (SO-101)

A person resets the scene between episodes and says when the task is done (``interventions``). A
simulated robot does both itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from proctor.config.sections.env_processors import KinematicsProcessing
from proctor.control.loop.pacing import Pacer
from proctor.control.loop.session import ControlSession
from proctor.control.policy.approach import approach
from proctor.control.robot_features import ChannelMapping, robot_interface
from proctor.errors import ConnectionLost, UsageError
from proctor.features import ActionSpec, Array, Feature, Interface, Observation
from proctor.rl.environment.environments import EnvStep, StepInfo, to_network_layout
from proctor.robots.base import Action, Robot, RobotObservation
from proctor.robots.teleoperators.end_effector import (
    GRIPPER_PERCENT_PER_S,
    GRIPPER_STAY,
    SO101_UNITS,
    moved_hand,
)

HAND_ACTIONS = ("delta_x", "delta_y", "delta_z")
GRIPPER_ACTION = "gripper"
_AXES = "xyz"


class ActionDriver(Protocol):
    """Turns an action vector into joint targets."""

    action: ActionSpec

    def begin(self, observed: RobotObservation) -> None:
        """Start an episode at the robot's pose."""

    def targets(self, action: Array) -> Action:
        """Return the joint targets of an action."""


class JointDriver:
    """Actions are the robot's own channels."""

    def __init__(self, robot: Robot, interface: Interface) -> None:
        self._mapping = ChannelMapping(robot)
        limits = interface.action
        names = tuple(robot.action_features)
        self.action = ActionSpec(limits.size, limits.low, limits.high, limits.clipped, names)

    def begin(self, observed: RobotObservation) -> None:
        """Do nothing: targets are absolute."""

    def targets(self, action: Array) -> Action:
        """Return the action by channels."""
        return self._mapping.action(action)


class HandDriver:
    """Actions are steps of an SO-101's hand, from -1 to 1 of a step size, and the gripper."""

    def __init__(
        self, robot: Robot, settings: KinematicsProcessing, fps: int, *, use_gripper: bool
    ) -> None:
        """Solve the inverse kinematics of ``robot``."""
        if dict(robot.action_features) != SO101_UNITS:
            raise UsageError(
                f"--processor.inverse_kinematics moves the hand of an SO-100 or SO-101 in "
                f"degrees; {robot.name} has {', '.join(robot.action_features)}",
                code="rl.no-kinematics",
            )
        sizes = settings.end_effector_step_sizes or {}
        self._step_m = np.array([sizes.get(axis, 1.0) for axis in _AXES])
        bounds = settings.end_effector_bounds or {}
        self._bounds = (
            np.array(bounds.get("min", [-np.inf] * 3)),
            np.array(bounds.get("max", [np.inf] * 3)),
        )
        self._gripper_step = GRIPPER_PERCENT_PER_S / fps
        self._uses_gripper = use_gripper
        low, high = [-1.0] * 3, [1.0] * 3
        names = [*HAND_ACTIONS]
        if use_gripper:
            low, high, names = [*low, 0.0], [*high, 2.0], [*names, GRIPPER_ACTION]
        self.action = ActionSpec(len(names), tuple(low), tuple(high), names=tuple(names))
        self._targets = np.zeros(len(SO101_UNITS))

    def begin(self, observed: RobotObservation) -> None:
        """Start at the observed pose."""
        self._targets = np.array([observed[name] for name in SO101_UNITS], np.float64)

    def targets(self, action: Array) -> Action:
        """Return the joint targets with the hand moved; a pose out of reach changes nothing."""
        step = np.clip(np.asarray(action[:3], np.float64), -1.0, 1.0) * self._step_m
        self._targets[:-1] = moved_hand(self._targets, step, self._bounds)
        if self._uses_gripper:
            change = (round(float(action[3])) - GRIPPER_STAY) * self._gripper_step
            self._targets[-1] = np.clip(self._targets[-1] + change, 0.0, 100.0)
        return dict(zip(SO101_UNITS, map(float, self._targets), strict=True))


@dataclass(frozen=True)
class RobotEnvSettings:
    """Rate, length and reset of episodes."""

    fps: int
    max_steps: int
    reset_time_s: float = 0.0
    """Seconds in which a person resets the scene."""
    reset_pose: Action | None = None
    task: str = ""
    terminate_on_success: bool = True


class RobotOnlineEnv:
    """A robot whose devices are connected in an entered ``ControlSession``."""

    start: str | None = None  # the scene of a robot is not measured

    def __init__(
        self,
        session: ControlSession,
        driver: ActionDriver,
        keys: Sequence[str],
        settings: RobotEnvSettings,
    ) -> None:
        self.session = session
        robot = session.robot
        offered = robot_interface(robot, settings.fps).features
        self.features: Mapping[str, Feature] = {key: offered[key] for key in keys}
        self.action, self.fps, self.task = driver.action, settings.fps, settings.task
        self._driver, self._settings = driver, settings
        self._mapping = ChannelMapping(robot)
        self._pacer = Pacer(robot.clock, settings.fps)
        self._steps = 0
        self._gripper = next((name for name in robot.action_features if "gripper" in name), None)
        self._observed_gripper = self._sent_gripper = 0.0
        self._last: RobotObservation = {}

    def gripper_position(self) -> float:
        """Return the gripper's position before the last action; 0 without a gripper."""
        return self._observed_gripper

    def gripper_command(self) -> float:
        """Return the gripper's last target; 0 without a gripper."""
        return self._sent_gripper

    def reset(self, seed: int) -> Observation:
        """Move to the start pose, and let a person or the simulated scene place the objects."""
        robot, settings = self.session.robot, self._settings
        pose = settings.reset_pose
        if pose is not None:
            approach(robot, lambda: pose, settings.fps, self.session.should_end)
        if robot.scene is not None:
            robot.scene.reset(seed)
        else:
            self._wait(settings.reset_time_s)
        self._last = observed = robot.get_observation()
        self._driver.begin(observed)
        self._pacer = Pacer(robot.clock, settings.fps)
        self._pacer.tick()
        self._steps = 0
        return self._features(observed)

    def step(self, action: Array) -> EnvStep:
        """Send one action, wait for the period's end, and observe."""
        robot = self.session.robot
        self._check_running()
        sent = robot.send_action(self._driver.targets(action))
        self._pacer.tick()
        if self._gripper is not None:
            self._observed_gripper = float(self._last[self._gripper])
            self._sent_gripper = sent[self._gripper]
        self._last = observed = robot.get_observation()
        self._steps += 1
        success = None if robot.scene is None else robot.scene.succeeded()
        terminated = bool(success) and self._settings.terminate_on_success
        return EnvStep(
            self._features(observed),
            float(bool(success)),
            terminated,
            not terminated and self._steps >= self._settings.max_steps,
            StepInfo(success),
        )

    def close(self) -> None:
        """Switch the motors off as configured, and disconnect."""
        self.session.__exit__(None, None, None)

    def _wait(self, seconds: float) -> None:
        clock = self.session.robot.clock
        end = clock.now() + seconds
        while clock.now() < end:
            self._check_running()
            clock.sleep_until(min(end, clock.now() + 1 / self._settings.fps))

    def _check_running(self) -> None:
        if self.session.should_end():
            raise ConnectionLost("a signal stopped the actor")

    def _features(self, observed: RobotObservation) -> Observation:
        found = self._mapping.features(observed, tuple(self.features))
        return {key: to_network_layout(value, self.features[key]) for key, value in found.items()}
