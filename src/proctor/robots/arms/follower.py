"""Follower arms: positions and images out, limited targets in."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from proctor.errors import DeviceNotConnected, RobotError
from proctor.robots.action_limits import ActionLimiter, LimitSettings, PerChannel, per_channel
from proctor.robots.arms.serial_arm import SerialArm, is_simulated
from proctor.robots.base import (
    Action,
    DeviceHealth,
    ImageShape,
    Robot,
    RobotConfig,
    RobotObservation,
    SimulatedScene,
    Unit,
)
from proctor.robots.buses.normalisation import PositionScale
from proctor.robots.buses.registers import Motor
from proctor.robots.cameras.configs import camera_configs, make_cameras
from proctor.settings import setting

_TORQUE_CHECK_S = 1.0


@dataclass(kw_only=True)
class FollowerFields:
    """Flags of one follower arm, alone or one of two; the first four are LeRobot's."""

    help_group: ClassVar[str] = "Robot"

    port: str = field(
        metadata={
            "help": "serial port of the motors; sim: the simulated arm",
            "placeholder": "/dev/ttyACM0",
        }
    )
    disable_torque_on_disconnect: bool = setting(True, "switch the motors off at a clean end")
    max_relative_target: float | dict[str, float] | None = setting(
        None,
        "largest distance of a target from the measured position, in the joint's unit: a "
        "number or {motor: number} (default: no limit)",
    )
    cameras: dict[str, Any] = setting(
        {}, "cameras by name: {front: {type: opencv, width: 640, ...}} (default: no cameras)"
    )
    max_speed: float | dict[str, float] | None = setting(
        None,
        "largest speed of targets, in the joint's unit per second: a number or {motor: "
        "number} (default: no limit)",
    )
    start_speed: float | None = setting(
        60.0,
        "speed of the way to the first target, in the joint's unit per second; null: go "
        "there at once",
    )
    start_max_distance: float | None = setting(
        None,
        "largest distance of the first target from the robot's pose; a farther one ends the "
        "command (default: any distance)",
    )


@dataclass(kw_only=True)
class FollowerConfig(FollowerFields, RobotConfig):
    """Flags of every follower arm."""


class SerialFollower(SerialArm, Robot):
    """A follower arm on a serial bus, with cameras."""

    calibration_kind: ClassVar[str] = "robots"

    def __init__(self, config: FollowerConfig, motors: Mapping[str, Motor], retries: int) -> None:
        super().__init__(config, motors)
        positions = [f"{name}.pos" for name in self._joints]
        self._limiter = ActionLimiter(_limit_settings(config, positions))
        self.cameras = make_cameras(camera_configs(config.cameras), self.clock)
        self.scene = _scene_of(self.port)
        self._keeps_torque = not config.disable_torque_on_disconnect
        self._retries = retries
        self._stopped = False
        self._torque_checked_at: float | None = None

    @property
    def observation_features(self) -> Mapping[str, Unit | ImageShape]:
        """Joint positions, then cameras."""
        cameras = {name: camera.shape for name, camera in self.cameras.items()}
        return {**self.action_features, **cameras}

    @property
    def limits(self) -> Mapping[str, tuple[float, float]]:
        """Ends of the calibrated range of each joint; empty before ``connect``."""
        calibration = self.bus.calibration
        ends = {}
        for name in self._joints:
            if name in calibration:
                scale = PositionScale(name, self.bus.motors[name], calibration[name])
                low = scale.to_unit(calibration[name].range_min)
                high = scale.to_unit(calibration[name].range_max)
                ends[f"{name}.pos"] = (min(low, high), max(low, high))
        return ends

    def _connect_more(self) -> None:
        for camera in self.cameras.values():
            camera.connect()
        self._stopped = False
        self._torque_checked_at = None
        self._limiter.restart(self.limits)
        self._limiter.clipped.clear()

    def get_observation(self) -> RobotObservation:
        """Read the positions in one request, then the newest image of each camera."""
        observation = self._read_state()
        for name, camera in self.cameras.items():
            observation[name] = camera.latest().image
        return observation

    def _read_state(self) -> RobotObservation:
        """Read all channels."""
        return dict(self._read_pose())

    def _read_pose(self) -> Action:
        positions = self._read("Present_Position", self._joints, self._retries)
        return {f"{name}.pos": value for name, value in positions.items()}

    def send_action(self, action: Action) -> Action:
        """Send the targets of the channels that the arm has; other keys are ignored."""
        if not self.is_connected:
            raise DeviceNotConnected(f"{self._label} is not connected")
        if self._stopped:
            raise RobotError(f"{self._label} was stopped; connect it again", code="robot.stopped")
        self._check_guard()
        self._check_torque()
        requested_action = {name: action[name] for name in self.action_features if name in action}
        sent = self._limiter.apply(requested_action, self._read_pose, self.clock.now())
        self._send(sent)
        return sent

    def _check_torque(self) -> None:
        """Ask the motors each second whether they hold: a dip of the power releases them."""
        now = self.clock.now()
        if self._torque_checked_at is None:  # torque has just been switched on
            self._torque_checked_at = now
        if now < self._torque_checked_at + _TORQUE_CHECK_S:
            return
        on = self._read("Torque_Enable", self._joints, self._retries)
        if off := [name for name, value in on.items() if not value]:
            raise RobotError(
                f"{self._label}: the torque of {', '.join(off)} is off, and no command switched it "
                "off; check the power supply and the cables",
                code="robot.torque-lost",
            )
        self._torque_checked_at = now

    def _send(self, targets: Action) -> None:
        goals = {channel.removesuffix(".pos"): value for channel, value in targets.items()}
        self.bus.sync_write("Goal_Position", goals)

    def stop(self) -> None:
        """Switch every motor off; targets are refused until the arm is connected again."""
        self._stopped = True
        self.bus.disable_torque()

    def disconnect(self) -> None:
        """Switch the motors off, unless the config keeps them on and no error is being handled."""
        failing = not isinstance(sys.exception(), KeyboardInterrupt | None)
        with ExitStack() as everything:  # runs all, from the last to the first
            for camera in self.cameras.values():
                everything.callback(camera.disconnect)
            everything.callback(self._disconnect, torque_off=failing or not self._keeps_torque)

    def health(self) -> DeviceHealth:
        """Return the counts of the bus and of clipped targets."""
        return replace(super().health(), clipped=dict(self._limiter.clipped))


def _limit_settings(config: FollowerConfig, channels: list[str]) -> LimitSettings:
    """Return the checked limits of a config."""
    single: dict[str, PerChannel] = {
        "start_speed": config.start_speed,
        "start_max_distance": config.start_max_distance,
    }
    for name, value in single.items():
        per_channel(f"--robot.{name}", value, channels)
    return LimitSettings(
        step=per_channel("--robot.max_relative_target", config.max_relative_target, channels),
        speed=per_channel("--robot.max_speed", config.max_speed, channels),
        start_speed=config.start_speed,
        start_distance=config.start_max_distance,
    )


def _scene_of(port: str) -> SimulatedScene | None:
    if not is_simulated(port):
        return None
    from proctor.robots.emulation.cell import scene_for

    return scene_for(port)
