"""Interfaces of robots, teleoperators and cameras, with LeRobot's contracts.

RobotConfig, TeleoperatorConfig, CameraConfig   the flags of a device type
RobotPlugin, TeleoperatorPlugin, CameraPlugin   how a type is registered in ``proctor.plugins``
Robot, Teleoperator, Camera                     a device: connect, read, command, disconnect
Operator                                        the person who calibrates or sets up a device
KeySource, KeyReader                            keys of the terminal, shared by all who need them
Clock                                           time of a control loop, real or simulated
SimulatedScene                                  the world of a simulated robot

Actions and the scalar part of observations are dicts from a channel ("elbow_flex.pos") to a float
in the channel's unit. Images are uint8 [H, W, 3], RGB.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

from proctor.errors import DeviceNotConnected
from proctor.features import Array
from proctor.settings import setting

Action: TypeAlias = dict[str, float]
"""Channel ("elbow_flex.pos", "x.vel") -> value in the channel's unit."""
RobotObservation: TypeAlias = dict[str, Any]
"""Channel -> float, camera name -> image uint8 [H, W, 3] (depth: uint16 [H, W, 1])."""
ImageShape: TypeAlias = tuple[int, int, int]


class Unit(Enum):
    """Unit of a channel; the values are stored in datasets."""

    DEGREES = "degrees"
    PERCENT = "percent"
    """0 to 100 of the calibrated range, as LeRobot's RANGE_0_100."""
    SIGNED_PERCENT = "signed percent"
    """-100 to 100 of the calibrated range, as LeRobot's RANGE_M100_100."""
    METRES_PER_SECOND = "m/s"
    DEGREES_PER_SECOND = "deg/s"
    METRES = "m"
    OTHER = "other"


VELOCITIES = (Unit.METRES_PER_SECOND, Unit.DEGREES_PER_SECOND)


class Clock(Protocol):
    """Time of a control loop in seconds."""

    def now(self) -> float:
        """Return the time, which never goes back."""

    def sleep_until(self, moment: float) -> None:
        """Wait until ``now()`` is ``moment``; return at once if it has passed."""


class RealClock:
    """The computer's monotonic clock."""

    def now(self) -> float:
        """Return the seconds of the monotonic clock."""
        return time.perf_counter()

    def sleep_until(self, moment: float) -> None:
        """Sleep until ``moment``."""
        while (left := moment - time.perf_counter()) > 0:
            time.sleep(left)


class Operator(Protocol):
    """The person at the robot, asked during calibration and motor set-up."""

    def tell(self, text: str) -> None:
        """Show a line."""

    def ask(self, text: str) -> str:
        """Show a prompt, wait for a line of input and return it without the newline."""

    def pressed_enter(self) -> bool:
        """Return whether Enter was pressed since the last call; never wait."""

    def show_table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show a table in place of the table shown before."""


class KeyReader(Protocol):
    """Gets every key of a ``KeySource`` once."""

    def poll(self) -> list[str]:
        """Return the keys pressed since the last call; never wait."""


class KeySource(Protocol):
    """Reads the terminal's keys once, for any number of readers (``control.keys.KeyHub``)."""

    @property
    def is_live(self) -> bool:
        """Whether a person can press keys."""

    def reader(self) -> KeyReader:
        """Return a new reader, which gets all keys from now on."""

    def press(self, key: str) -> None:
        """Hand a key to all readers, as a button of a gamepad that stands for the key."""


@dataclass
class CameraConfig:
    """Flags of every camera; a camera type's own config inherits from this class."""

    type: str = ""
    fps: int | None = None
    width: int | None = None
    height: int | None = None
    name: str = field(default="", init=False, compare=False)
    """The robot's name of the camera ("front"), not a flag; empty for a camera on its own."""


@dataclass
class DeviceConfig:
    """Flags of every robot and teleoperator."""

    id: str | None = setting(
        None,
        "name of this device; names its calibration file (default: no name; the file is "
        "None.json, as LeRobot's)",
    )
    calibration_dir: Path | None = setting(
        None, "folder of calibration files (default: $HF_LEROBOT_CALIBRATION, as LeRobot)"
    )


@dataclass
class RobotConfig(DeviceConfig):
    """Flags of every robot; a robot type's own config inherits from this class."""

    help_group: ClassVar[str] = "Robot"

    type: str = setting("", "robot: a built-in name or package.module:NAME")


@dataclass
class TeleoperatorConfig(DeviceConfig):
    """Flags of every teleoperator; a type's own config inherits from this class."""

    help_group: ClassVar[str] = "Teleoperator"

    type: str = setting("", "teleoperator: a built-in name or package.module:NAME")


@dataclass(frozen=True)
class CameraFrame:
    """One image of a camera."""

    image: Array
    """uint8 [H, W, 3], RGB; a depth camera: uint16 [H, W, 1]."""
    captured_at: float
    """Time on the robot's clock."""
    number: int
    """Count of images since the camera was opened; equal numbers are the same image."""


class Camera(ABC):
    """A camera with its own reader thread (a simulated one renders on request)."""

    depth: Camera | None = None
    """Depth images of the same device; a robot has it as the camera NAME_depth."""

    @property
    @abstractmethod
    def shape(self) -> ImageShape:
        """Height, width and channels of an image."""

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """Whether the camera delivers images; False once its reader has ended."""

    @abstractmethod
    def connect(self) -> None:
        """Open the camera and wait for its first image.

        Raises:
            DeviceNotConnected: it is not there, or does not deliver the configured images.
        """

    @abstractmethod
    def latest(self, max_age_s: float = 0.5) -> CameraFrame:
        """Return the newest image without waiting; the same number again if there is no newer one.

        Raises:
            DeviceNotConnected: the newest image is older than ``max_age_s``, also a moment later.
        """

    @abstractmethod
    def disconnect(self) -> None:
        """Close the camera; a closed one is left alone."""


class SimulatedScene(Protocol):
    """The world of a simulated robot: it places objects and judges episodes."""

    state_names: tuple[str, ...]
    """Names of the numbers of ``state``, as "cube.x"; empty if it has none."""

    def state(self) -> Array:
        """Return the privileged state for ``observation.environment_state``, float32 [n]."""

    def joint_positions(self) -> Array:
        """Return the arm's true joint positions in the benchmark's units and order, float32 [n]."""

    def reset(self, seed: int) -> None:
        """Place the objects of an episode; equal seeds give equal scenes."""

    def succeeded(self) -> bool:
        """Return whether the task is done now."""


@dataclass(frozen=True)
class GuardTarget:
    """Motors that the torque guard switches off if this process is killed."""

    port: str
    protocol: str
    """"feetech" or "dynamixel"."""
    baudrate: int
    motor_ids: tuple[int, ...]


@dataclass
class DeviceHealth:
    """Counts of a device since it was connected."""

    requests: int = 0
    retries: int = 0
    lost_replies: dict[str, int] = field(default_factory=dict)
    """Motor -> replies that never came or were corrupt."""
    alerts: dict[str, str] = field(default_factory=dict)
    """Motor -> its present alert, as "overload"; empty if all are well."""
    clipped: dict[str, int] = field(default_factory=dict)
    """Channel -> targets that a limit changed."""


class Device(ABC):
    """What robots and teleoperators share."""

    name: str
    """LeRobot's name of the kind: "so_follower"; robot_type of datasets, folder of calibrations."""
    clock: Clock

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """Whether the device answers."""

    @property
    @abstractmethod
    def action_features(self) -> Mapping[str, Unit]:
        """Channels of an action, in order, with their units; known before ``connect``."""

    @abstractmethod
    def connect(self, operator: Operator | None = None) -> None:
        """Open the device and configure it; calibrate it with ``operator`` if need be.

        Raises:
            DeviceNotConnected: the port or a motor does not answer.
            RobotError: it is not calibrated and there is no operator.
        """

    @property
    def is_calibrated(self) -> bool:
        """Whether the motors hold the calibration of the file; True for devices without one."""
        return True

    def calibration_values(self) -> Mapping[str, Mapping[str, int]]:
        """Return the calibration in use, motor -> values; empty for devices without one."""
        return {}

    def calibrate(self, operator: Operator) -> None:
        """Calibrate with a person's help; devices without motors have nothing to calibrate."""
        operator.tell(f"{self.name} needs no calibration")

    def set_up_motors(self, operator: Operator) -> None:
        """Give every motor its id and baud rate, one at a time.

        Raises:
            UsageError: the device has no motors to set up.
        """
        from proctor.errors import UsageError

        raise UsageError(f"{self.name} has no motors to set up", code="robot.no-motors")

    @abstractmethod
    def disconnect(self) -> None:
        """Switch motors off as the config says and close the device; a closed one is left alone.

        A failure skips no motor, and the port is always closed; then the first failure
        is raised.
        """

    def guard_targets(self) -> Sequence[GuardTarget]:
        """Return the motors that a guard process must be able to switch off."""
        return ()

    def health(self) -> DeviceHealth:
        """Return the counts since ``connect``."""
        return DeviceHealth()


class Robot(Device):
    """A robot: observations out, actions in."""

    cameras: Mapping[str, Camera]
    scene: SimulatedScene | None = None
    """The simulated world; None for a real robot."""

    @property
    @abstractmethod
    def observation_features(self) -> Mapping[str, Unit | ImageShape]:
        """Channels with units and cameras with shapes, in order; known before ``connect``."""

    @abstractmethod
    def get_observation(self) -> RobotObservation:
        """Read all channels and the newest image of every camera.

        Raises:
            DeviceNotConnected: the bus or a camera is gone.
            RobotError: a motor reports an alert; the text names the joint and the cause.
        """

    @abstractmethod
    def send_action(self, action: Action) -> Action:
        """Send targets, limited as configured; return the targets that were sent."""

    @property
    def limits(self) -> Mapping[str, tuple[float, float]]:
        """Lowest and highest target of channels that have limits, in their units."""
        return {}

    @abstractmethod
    def stop(self) -> None:
        """Switch every motor off at once, in spite of the config; keep the device connected."""


class Teleoperator(Device):
    """A person's controller, or a script that plays the person."""

    feedback_features: Mapping[str, Unit] = {}
    is_scripted: ClassVar[bool] = False
    """Whether a program plays the person: recordings then keep only successful takes."""

    @abstractmethod
    def get_action(self) -> Action:
        """Return the present action."""

    def attach(self, robot: Robot) -> None:
        """Learn which robot is driven, before either is connected; scripts need its scene."""

    def use_keys(self, keys: KeySource) -> None:
        """Learn who reads the terminal, before ``connect``; the loop reads it too."""

    def start_episode(self) -> None:
        """Prepare for a new episode; a script begins anew."""

    @property
    def is_actuated(self) -> bool:
        """Whether it can be moved to a pose with ``send_feedback``."""
        return False

    def set_torque(self, *, on: bool) -> None:
        """Switch the motors of an actuated teleoperator."""

    def send_feedback(self, feedback: Action) -> None:
        """Move an actuated teleoperator to a pose."""
        raise DeviceNotConnected(
            f"{self.name} has no motors for feedback", code="robot.no-feedback"
        )


@dataclass(frozen=True)
class RobotPlugin:
    """A type of robot: its config class and a function that makes the unconnected robot."""

    config: type[RobotConfig]
    make: Callable[[Any], Robot]
    summary: str


@dataclass(frozen=True)
class TeleoperatorPlugin:
    """A type of teleoperator: its config class and a function that makes it, unconnected."""

    config: type[TeleoperatorConfig]
    make: Callable[[Any], Teleoperator]
    summary: str


@dataclass(frozen=True)
class CameraPlugin:
    """A type of camera: its config class and a function (config, clock) that makes it, closed."""

    config: type[CameraConfig]
    make: Callable[[Any, Clock], Camera]
    summary: str
