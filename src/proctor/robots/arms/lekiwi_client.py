"""LeKiwi driven from another computer, through the host program on the robot (LeRobot's protocol).

The client pushes an action as JSON. The host pushes messages of several parts: a JSON object with
the state and the names of the cameras ("_cams"), then one JPEG for each camera. Only the newest
message counts. The host stops the wheels when no action comes for half a second.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.errors import (
    DeviceNotConnected,
    ProctorWarning,
    ProtocolError,
    RobotError,
    UsageError,
)
from proctor.features import Array
from proctor.protocols.zmtp.peer import MessageLimits
from proctor.robots.action_limits import ActionLimiter, LimitSettings
from proctor.robots.arms.host_link import HostAddress, HostLink
from proctor.robots.arms.lekiwi import BASE, PREFIX, usual_cameras
from proctor.robots.arms.so import so_motors
from proctor.robots.base import (
    Action,
    Camera,
    CameraFrame,
    Clock,
    DeviceHealth,
    ImageShape,
    Operator,
    RealClock,
    Robot,
    RobotConfig,
    RobotObservation,
    RobotPlugin,
    Unit,
)
from proctor.robots.cameras.configs import MOST_SIDE
from proctor.robots.cameras.opencv import import_cv2
from proctor.robots.cameras.peer_images import decode_peer_image, most_image_bytes
from proctor.robots.host_key import read_host_key
from proctor.settings import setting
from proctor.system.limits import decode_json

_STALE_S = 1.0
"""Age at which the newest message no longer counts as an observation."""

_LINGER_S = 0.5
_MOST_PARTS, _MOST_HEADER_BYTES, _MOST_OTHER_BYTES = 32, 2**16, 2**22
"""Limits of a message: the host may also send cameras that are not configured here."""


@dataclass(kw_only=True)
class LekiwiClientConfig(RobotConfig):
    """Flags of the computer that drives a LeKiwi, with LeRobot's names and defaults."""

    remote_ip: str = field(metadata={"help": "address of the robot", "placeholder": "192.168.1.2"})
    port_zmq_cmd: int = setting(5555, "the host's port for actions")
    port_zmq_observations: int = setting(5556, "the host's port for observations")
    cameras: dict[str, Any] = field(
        default_factory=usual_cameras,
        metadata={"help": "cameras of the host by name; only width and height are used"},
    )
    key_file: Path | None = setting(
        None,
        "file of the host's key, copied from the robot's computer (proctor robot-host "
        "--host.key_file) (default: a host without a key)",
    )
    polling_timeout_ms: int = setting(15, "longest wait for a newer observation, in milliseconds")
    connect_timeout_s: float = setting(5, "longest wait for the first observation, in seconds")
    start_speed: float | None = setting(
        60.0,
        "speed of the way to the first target, in the joint's unit per second; null: go "
        "there at once",
    )


@dataclass(frozen=True)
class _Message:
    """One message of the host."""

    state: Action
    images: Mapping[str, Array]
    received_at: float
    number: int


class _HostCamera(Camera):
    """A camera of the host; its images come with the state."""

    def __init__(self, name: str, shape: ImageShape, client: LekiwiClient) -> None:
        self._name, self._shape, self._client = name, shape, client

    @property
    def shape(self) -> ImageShape:
        """Height, width and channels, as configured."""
        return self._shape

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected."""
        return self._client.is_connected

    def connect(self) -> None:
        """Do nothing: the host opens it."""

    def latest(self, max_age_s: float = _STALE_S) -> CameraFrame:
        """Return the image of the newest message."""
        message = self._client.newest(max_age_s)
        image = message.images.get(self._name)
        if image is None or image.shape != self._shape:
            found = "no image" if image is None else f"an image of shape {image.shape}"
            raise DeviceNotConnected(
                f"the host sends {found} of camera {self._name!r}, expected {self._shape}",
                code="camera.no-image",
            )
        return CameraFrame(image, message.received_at, message.number)

    def disconnect(self) -> None:
        """Do nothing: the host closes it."""


class LekiwiClient(Robot):
    """A LeKiwi on the network. The host calibrates it and switches its motors."""

    name = "lekiwi_client"

    def __init__(self, config: LekiwiClientConfig) -> None:
        self._cv2 = import_cv2()
        file = config.key_file
        self._address = HostAddress(
            config.remote_ip,
            config.port_zmq_cmd,
            config.port_zmq_observations,
            None if file is None else read_host_key(file, "--robot.key_file"),
        )
        self.config = config
        self.clock: Clock = RealClock()
        self.cameras = {
            name: _HostCamera(name, _shape(name, fields), self)
            for name, fields in config.cameras.items()
        }
        self._limiter = ActionLimiter(LimitSettings(start_speed=config.start_speed))
        self._link: HostLink | None = None
        self.invalid = 0
        """Messages of the host that were left out since ``connect``."""
        self._problem = ""
        self._message: _Message | None = None
        self._last_sent: Action = {}
        self._stopped = False

    @property
    def is_connected(self) -> bool:
        """Whether the connections are open."""
        return self._link is not None

    @property
    def action_features(self) -> Mapping[str, Unit]:
        """Positions of the arm, in the host's default units, then the motion of the base."""
        arm = so_motors(use_degrees=True, prefix=PREFIX)
        return {**{f"{name}.pos": motor.unit for name, motor in arm.items()}, **BASE}

    @property
    def observation_features(self) -> Mapping[str, Unit | ImageShape]:
        """The channels of an action, then the cameras."""
        return {**self.action_features, **{n: c.shape for n, c in self.cameras.items()}}

    def connect(self, operator: Operator | None = None) -> None:
        """Connect to the host and wait for its first observation."""
        if self.is_connected:
            raise RobotError(f"{self.name} is connected already", code="robot.already-connected")
        images = [most_image_bytes(*camera.shape[:2]) for camera in self.cameras.values()]
        limits = MessageLimits(_MOST_PARTS, _MOST_OTHER_BYTES + sum(images))
        self._link = HostLink(self._address, limits, self.config.connect_timeout_s)
        self.invalid, self._problem = 0, ""
        try:
            self._receive(self.config.connect_timeout_s)
            if self._message is None:
                raise DeviceNotConnected(
                    f"no observation from {self._address} within "
                    f"{self.config.connect_timeout_s:g} s{self._problem or '; is it running?'}",
                    code="robot.host-silent",
                )
        except BaseException:
            self._close()
            raise
        self._stopped = False
        self._limiter.restart({})

    def _receive(self, wait_s: float) -> None:
        """Take the newest valid message; the first invalid one is reported, and all are counted."""
        assert self._link is not None
        until = time.monotonic() + wait_s
        left_s = wait_s
        while left_s >= 0 and (parts := self._link.receive(left_s)):
            try:
                self._message = self._decode(parts)
            except ProtocolError as error:
                self._note_invalid(error)
                left_s = until - time.monotonic()
            else:
                return

    def _note_invalid(self, error: ProtocolError) -> None:
        self.invalid += 1
        self._problem = f"; the host sends invalid messages: {error}"
        if self.invalid == 1:
            warnings.warn(
                f"{self.name}: an invalid message is left out, as further ones: {error}",
                ProctorWarning,
                stacklevel=4,
            )

    def _decode(self, parts: list[bytes]) -> _Message:
        """Return a message of the host."""
        header = decode_json(parts[0], _MOST_HEADER_BYTES)
        names = header.get("_cams", []) if isinstance(header, dict) else None
        if not isinstance(names, list) or len(names) != len(parts) - 1:
            raise ProtocolError("its header does not fit", code="protocol.invalid-observation")
        state = {name: header.get(name) for name in self.action_features}
        if wrong := [n for n, value in state.items() if type(value) not in (int, float)]:
            raise ProtocolError(
                f"it has no number {', '.join(wrong)}", code="protocol.invalid-observation"
            )
        images = {
            name: decode_peer_image(self._cv2, jpeg, self.cameras[name].shape[:2])
            for name, jpeg in zip(names, parts[1:], strict=True)
            if isinstance(name, str) and name in self.cameras
        }
        number = 1 if self._message is None else self._message.number + 1
        numbers = {name: float(value) for name, value in state.items()}
        return _Message(numbers, images, self.clock.now(), number)

    def newest(self, max_age_s: float) -> _Message:
        """Return the newest message."""
        if self._message is None or not self.is_connected:
            raise DeviceNotConnected(f"{self.name} is not connected")
        age = self._age(self._message)
        if age > max_age_s:
            raise DeviceNotConnected(
                f"the newest observation of the host is {age:.2f} s old{self._problem}",
                code="robot.host-silent",
            )
        return self._message

    def _age(self, message: _Message) -> float:
        return self.clock.now() - message.received_at

    def get_observation(self) -> RobotObservation:
        """Return the newest state and images of the host."""
        if self.is_connected:
            self._receive(self.config.polling_timeout_ms / 1000)
            if self._message is not None and self._age(self._message) > _STALE_S:
                self._receive(_STALE_S)  # after a pause of this computer
        message = self.newest(_STALE_S)
        images = {name: camera.latest().image for name, camera in self.cameras.items()}
        return {**message.state, **images}

    def send_action(self, action: Action) -> Action:
        """Send targets; a motion of the base that is not given is 0."""
        if not self.is_connected:
            raise DeviceNotConnected(f"{self.name} is not connected")
        if self._stopped:
            raise RobotError(f"{self.name} was stopped; connect it again", code="robot.stopped")
        still = dict.fromkeys(BASE, 0.0)
        requested = {name: action[name] for name in self.action_features if name in action}
        sent = self._limiter.apply({**still, **requested}, self._measured_pose, self.clock.now())
        self._push(sent)
        return sent

    def _measured_pose(self) -> Action:
        state = self.newest(_STALE_S).state
        return {name: value for name, value in state.items() if name not in BASE}

    def _push(self, targets: Action) -> None:
        """Send targets without waiting; the host takes the newest of those that wait."""
        assert self._link is not None
        if not self._link.send(json.dumps(targets).encode()):
            raise DeviceNotConnected("the host takes no actions", code="robot.host-silent")
        self._last_sent = targets

    def stop(self) -> None:
        """Stop the base and hold the arm where it is; the protocol cannot switch motors off."""
        self._stopped = True
        self._receive(0)
        pose = {} if self._message is None else self._message.state
        self._push({**pose, **dict.fromkeys(BASE, 0.0)})

    def disconnect(self) -> None:
        """Stop the base and close the sockets; the host keeps its motors as they are."""
        if not self.is_connected:
            return
        try:
            if self._last_sent:
                self._push({**self._last_sent, **dict.fromkeys(BASE, 0.0)})
        finally:
            self._close()

    def _close(self) -> None:
        assert self._link is not None
        self._link.close(_LINGER_S)
        self._link, self._message, self._last_sent = None, None, {}

    def health(self) -> DeviceHealth:
        """Return the counts of clipped targets; the host has those of the bus."""
        return DeviceHealth(clipped=dict(self._limiter.clipped))


def _shape(name: str, fields: Any) -> ImageShape:
    """Return the configured shape of a camera's images."""
    height, width = (
        fields.get(key) if isinstance(fields, dict) else None for key in ("height", "width")
    )
    if (
        isinstance(height, int)
        and isinstance(width, int)
        and min(height, width) >= 1
        and max(height, width) <= MOST_SIDE
    ):
        return (height, width, 3)
    raise UsageError(
        f"--robot.cameras.{name}: width and height must be given, 1 to {MOST_SIDE} pixels",
        code="camera.field-missing",
    )


PLUGIN = RobotPlugin(LekiwiClientConfig, LekiwiClient, "LeKiwi on the network, behind its host")
