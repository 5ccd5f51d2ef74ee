"""LeKiwi: an SO arm on a base with three omnidirectional wheels, all on one bus."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from proctor.robots.arms.follower import FollowerConfig, SerialFollower
from proctor.robots.arms.serial_arm import RETRIES
from proctor.robots.arms.so import GAINS, POSITION_MODE, so_motors
from proctor.robots.base import Action, RobotObservation, RobotPlugin, Unit
from proctor.robots.buses.registers import Motor
from proctor.settings import setting

WHEELS = ("base_left_wheel", "base_back_wheel", "base_right_wheel")
PREFIX = "arm_"
BASE = {
    "x.vel": Unit.METRES_PER_SECOND,
    "y.vel": Unit.METRES_PER_SECOND,
    "theta.vel": Unit.DEGREES_PER_SECOND,
}
_VELOCITY_MODE = 1
_WHEEL_RADIUS_M, _BASE_RADIUS_M = 0.05, 0.125
_MOUNTING_DEG = (240 - 90, 0 - 90, 120 - 90)
_FASTEST = 3000
"""Encoder ticks per second of a wheel; faster targets are scaled down together."""
_TICKS_PER_DEGREE = 4096 / 360
_ROLLING = np.array(
    [
        [math.cos(math.radians(angle)), math.sin(math.radians(angle)), _BASE_RADIUS_M]
        for angle in _MOUNTING_DEG
    ]
)
"""Linear speed of each wheel (m/s) per x, y (m/s) and theta (rad/s) of the base."""
_STEERING = np.linalg.inv(_ROLLING)


def wheel_speeds(x: float, y: float, theta: float) -> dict[str, int]:
    """Return Goal_Velocity of each wheel for a motion of the base in m/s, m/s and deg/s."""
    linear = _ROLLING @ (x, y, math.radians(theta))
    ticks = np.degrees(linear / _WHEEL_RADIUS_M) * _TICKS_PER_DEGREE
    fastest = float(np.abs(ticks).max())
    if fastest > _FASTEST:
        ticks = ticks * (_FASTEST / fastest)
    return {wheel: round(float(speed)) for wheel, speed in zip(WHEELS, ticks, strict=True)}


def base_motion(wheels: Mapping[str, float]) -> Action:
    """Return the motion of the base for Present_Velocity of each wheel."""
    degrees = np.array([wheels[wheel] for wheel in WHEELS]) / _TICKS_PER_DEGREE
    x, y, theta = _STEERING @ (np.radians(degrees) * _WHEEL_RADIUS_M)
    return {"x.vel": float(x), "y.vel": float(y), "theta.vel": math.degrees(theta)}


def usual_cameras() -> dict[str, Any]:
    """Return the cameras of a LeKiwi as it is built, as in LeRobot."""
    usual = {"type": "opencv", "fps": 30, "fourcc": "MJPG"}
    return {
        "front": usual
        | {"index_or_path": "/dev/video0", "rotation": 180}
        | {"width": 640, "height": 480},
        "wrist": usual
        | {"index_or_path": "/dev/video2", "rotation": 90}
        | {"width": 480, "height": 640},
    }


@dataclass(kw_only=True)
class LekiwiConfig(FollowerConfig):
    """Flags of a LeKiwi, on its own computer, with LeRobot's names and defaults."""

    port: str = setting("/dev/ttyACM0", "serial port of the motors of arm and base")
    cameras: dict[str, Any] = field(
        default_factory=usual_cameras,
        metadata={"help": "cameras by name: {front: {type: opencv, width: 640, ...}}"},
    )
    use_degrees: bool = setting(True, "joints in degrees; else -100 to 100 of their range")
    num_read_retries: int = setting(2, "times a lost reply is asked for again")


class Lekiwi(SerialFollower):
    """A LeKiwi: positions of the arm, velocities of the base."""

    name = "lekiwi"
    full_turn_joints: ClassVar[tuple[str, ...]] = ("arm_wrist_roll",)

    def __init__(self, config: LekiwiConfig) -> None:
        arm = so_motors(use_degrees=config.use_degrees, prefix=PREFIX)
        wheels = {
            name: Motor(number, "sts3215", Unit.OTHER) for number, name in enumerate(WHEELS, 7)
        }
        super().__init__(config, {**arm, **wheels}, config.num_read_retries)

    @property
    def _joints(self) -> tuple[str, ...]:
        return tuple(name for name in self.bus.motors if name not in WHEELS)

    @property
    def action_features(self) -> Mapping[str, Unit]:
        """Positions of the arm, then the motion of the base."""
        return {**super().action_features, **BASE}

    def _configure(self) -> None:
        self.bus.configure_motors()
        for name in self._joints:
            self.bus.write("Operating_Mode", name, POSITION_MODE, retries=RETRIES)
            for register, gain in GAINS.items():
                self.bus.write(register, name, gain, retries=RETRIES)
        for name in WHEELS:
            self.bus.write("Operating_Mode", name, _VELOCITY_MODE, retries=RETRIES)
        self._stop_base()  # a wheel keeps its last goal while it is off
        self._torque_on()

    def _prepare_calibration(self) -> None:
        for name in self._joints:
            self.bus.write("Operating_Mode", name, POSITION_MODE, retries=RETRIES)

    def _read_state(self) -> RobotObservation:
        return {
            **self._read_pose(),
            **base_motion(self._read("Present_Velocity", WHEELS, self._retries)),
        }

    def _send(self, targets: Action) -> None:
        """Send positions; send the base's motion if any part of it is given, else leave it."""
        motion = {name: targets.get(name, 0.0) for name in BASE}
        super()._send({name: value for name, value in targets.items() if name not in BASE})
        if any(name in targets for name in BASE):
            speeds = wheel_speeds(motion["x.vel"], motion["y.vel"], motion["theta.vel"])
            self.bus.sync_write("Goal_Velocity", speeds)

    def _stop_base(self) -> None:
        self.bus.sync_write("Goal_Velocity", dict.fromkeys(WHEELS, 0))

    def stop(self) -> None:
        """Stop the wheels and switch every motor off."""
        try:
            self._stop_base()
        finally:
            super().stop()

    def disconnect(self) -> None:
        """Stop the wheels, with every config, then disconnect the arm."""
        try:
            if self.is_connected:
                self._stop_base()
        finally:
            super().disconnect()


PLUGIN = RobotPlugin(LekiwiConfig, Lekiwi, "LeKiwi mobile manipulator, on its own computer")
