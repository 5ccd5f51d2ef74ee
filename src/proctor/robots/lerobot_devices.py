"""Adapters of LeRobot's Robot, Teleoperator and Camera objects, for packages of third parties.

Their channels have no units, so all have the unit "other". Errors of their code become one line:
DeviceNotConnected for a lost device, RobotError for anything else.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from proctor.errors import DeviceNotConnected, ProctorError, RobotError
from proctor.robots.base import (
    Action,
    Camera,
    CameraFrame,
    Clock,
    ImageShape,
    Operator,
    RealClock,
    Robot,
    RobotObservation,
    Teleoperator,
    Unit,
)
from proctor.system.user_code import error_location, exception_line


@contextlib.contextmanager
def explaining_device_errors(name: str) -> Iterator[None]:
    """Turn an exception of a third party's device into a RobotError of one line."""
    try:
        yield
    except ProctorError:
        raise
    except OSError as lost:  # LeRobot's DeviceNotConnectedError and TimeoutError are OSErrors
        raise DeviceNotConnected(
            f"{name}: {exception_line(lost)}", code="robot.third-party-lost"
        ) from lost
    except Exception as error:
        place = error_location(error)
        raise RobotError(
            f"{name}: {f'{place}: ' if place else ''}{exception_line(error)}",
            code="robot.third-party-failed",
        ) from error


def scalar_channels(features: Mapping[str, Any]) -> dict[str, Unit]:
    """Return the channels of LeRobot's features: names with a type, or ``names`` of a vector."""
    names = features.get("names")
    if isinstance(names, Mapping):  # as gamepads declare: {dtype, shape, names: {delta_x: 0}}
        return dict.fromkeys(names, Unit.OTHER)
    return {name: Unit.OTHER for name, kind in features.items() if not isinstance(kind, tuple)}


def _floats(values: Mapping[str, Any]) -> Action:
    return {name: float(value) for name, value in values.items()}


class _Adapter:
    """What adapted robots and teleoperators share."""

    def __init__(self, device: Any) -> None:
        self.name: str = device.name
        self.clock: Clock = RealClock()
        self._device = device

    @property
    def is_connected(self) -> bool:
        """Whether the device says that it is connected."""
        return bool(self._device.is_connected)

    @property
    def is_calibrated(self) -> bool:
        """Whether the device says that it is calibrated."""
        return bool(self._device.is_calibrated)

    @property
    def action_features(self) -> Mapping[str, Unit]:
        """The device's channels, without units."""
        return scalar_channels(self._device.action_features)

    def connect(self, operator: Operator | None = None) -> None:
        """Connect the device, which asks the person at the terminal if it must be calibrated."""
        with explaining_device_errors(self.name):
            accepted = inspect.signature(self._device.connect).parameters
            if "calibrate" in accepted:
                self._device.connect(calibrate=operator is not None)
            else:
                self._device.connect()
            if operator is None and not self._device.is_calibrated:
                self._device.disconnect()
                raise RobotError(f"{self.name} is not calibrated", code="robot.not-calibrated")

    def calibrate(self, operator: Operator) -> None:
        """Calibrate with the device's own dialogue."""
        with explaining_device_errors(self.name):
            self._device.calibrate()

    def set_up_motors(self, operator: Operator) -> None:
        """Run the device's own dialogue."""
        if not hasattr(self._device, "setup_motors"):
            raise RobotError(f"{self.name} has no motors to set up", code="robot.no-motors")
        with explaining_device_errors(self.name):
            self._device.setup_motors()

    def disconnect(self) -> None:
        """Disconnect the device; a disconnected one is left alone."""
        with explaining_device_errors(self.name):
            if self._device.is_connected:
                self._device.disconnect()


class LerobotCamera(Camera):
    """A camera of LeRobot's interface."""

    def __init__(self, camera: Any, clock: Clock) -> None:
        self._camera = camera
        self._clock = clock
        self._frame: CameraFrame | None = None
        self._name = str(camera)

    @property
    def shape(self) -> ImageShape:
        """Height, width and channels of an image."""
        return (int(self._camera.height), int(self._camera.width), 3)

    @property
    def is_connected(self) -> bool:
        """Whether the camera says that it is connected."""
        return bool(self._camera.is_connected)

    def connect(self) -> None:
        """Open the camera."""
        with explaining_device_errors(self._name):
            self._camera.connect()

    def latest(self, max_age_s: float = 0.5) -> CameraFrame:
        """Return the newest image; LeRobot returns the same array again if there is no newer."""
        with explaining_device_errors(self._name):
            image = self._camera.read_latest(max_age_ms=round(1000 * max_age_s))
        frame = self._frame
        if frame is None or image is not frame.image:
            number = 1 if frame is None else frame.number + 1
            frame = self._frame = CameraFrame(image, self._clock.now(), number)
        return frame

    def disconnect(self) -> None:
        """Close the camera; a closed one is left alone."""
        with explaining_device_errors(self._name):
            if self._camera.is_connected:
                self._camera.disconnect()


class LerobotRobot(_Adapter, Robot):
    """A robot of LeRobot's interface."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        theirs = getattr(device, "cameras", None) or {}
        self.cameras = {name: LerobotCamera(c, self.clock) for name, c in theirs.items()}

    @property
    def observation_features(self) -> Mapping[str, Unit | ImageShape]:
        """Channels without units, and cameras with their shapes."""
        features = self._device.observation_features
        return {name: k if isinstance(k, tuple) else Unit.OTHER for name, k in features.items()}

    def get_observation(self) -> RobotObservation:
        """Read the robot and its cameras."""
        with explaining_device_errors(self.name):
            observed = self._device.get_observation()
        images = {name: k for name, k in self.observation_features.items() if isinstance(k, tuple)}
        return {
            name: np.asarray(value) if name in images else float(value)
            for name, value in observed.items()
        }

    def send_action(self, action: Action) -> Action:
        """Send targets; return what the robot says that it sent."""
        with explaining_device_errors(self.name):
            sent = self._device.send_action(dict(action))
        return _floats(sent)

    def stop(self) -> None:
        """Switch the motors off; a robot without a known switch is disconnected."""
        with explaining_device_errors(self.name):
            for owner in (self._device, getattr(self._device, "bus", None)):
                switch_off = getattr(owner, "disable_torque", None)
                if switch_off is not None:
                    switch_off()
                    return
            self._device.disconnect()


class LerobotTeleoperator(_Adapter, Teleoperator):
    """A teleoperator of LeRobot's interface."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self.feedback_features = scalar_channels(device.feedback_features)

    def get_action(self) -> Action:
        """Return the present action."""
        with explaining_device_errors(self.name):
            return _floats(self._device.get_action())

    @property
    def is_actuated(self) -> bool:
        """Whether it takes feedback and its torque can be switched, as LeRobot asks."""
        switches = ("enable_torque", "disable_torque")
        return bool(self.feedback_features) and all(hasattr(self._device, s) for s in switches)

    def set_torque(self, *, on: bool) -> None:
        """Switch the motors of an actuated teleoperator."""
        if self.is_actuated:
            with explaining_device_errors(self.name):
                self._device.enable_torque() if on else self._device.disable_torque()

    def send_feedback(self, feedback: Action) -> None:
        """Move an actuated teleoperator to a pose."""
        with explaining_device_errors(self.name):
            self._device.send_feedback(dict(feedback))
