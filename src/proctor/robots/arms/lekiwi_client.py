"""LeKiwi driven from another computer, through the host program on the robot (LeRobot's protocol).

The client pushes an action as JSON. The host pushes messages of several parts: a JSON object with
the state and the names of the cameras ("_cams"), then one JPEG for each camera. Only the newest
message counts. The host stops the wheels when no action comes for half a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from proctor.errors import DeviceNotConnected, MissingExtra, RobotError, UsageError
from proctor.features import Array
from proctor.robots.action_limits import ActionLimiter, LimitSettings
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
from proctor.robots.cameras.opencv import import_cv2

_STALE_S = 1.0
"""Age at which the newest message no longer counts as an observation."""

_LINGER_MS = 500
_MOST_WAITING = 60
"""Actions that wait for a slow network. ZMQ could keep the newest one only (CONFLATE), but then it
drops the last one, which stops the base, when the socket is closed."""


@dataclass(kw_only=True)
class LekiwiClientConfig(RobotConfig):
    """Flags of the computer that drives a LeKiwi, with LeRobot's names and defaults."""

    remote_ip: str = field(metadata={"help": "address of the robot", "placeholder": "192.168.1.2"})
    port_zmq_cmd: int = field(default=5555, metadata={"help": "the host's port for actions"})
    port_zmq_observations: int = field(
        default=5556, metadata={"help": "the host's port for observations"}
    )
    cameras: dict[str, Any] = field(
        default_factory=usual_cameras,
        metadata={"help": "cameras of the host by name; only width and height are used"},
    )
    polling_timeout_ms: int = field(
        default=15, metadata={"help": "longest wait for a newer observation, in milliseconds"}
    )
    connect_timeout_s: float = field(
        default=5, metadata={"help": "longest wait for the first observation, in seconds"}
    )
    start_speed: float | None = field(
        default=60.0,
        metadata={
            "help": "speed of the way to the first target, in the joint's unit per second; null: "
            "go there at once"
        },
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
        try:
            import zmq
        except ModuleNotFoundError:
            raise MissingExtra("pyzmq", "wire") from None
        self._zmq: Any = zmq
        self._cv2 = import_cv2()
        self.config = config
        self.clock: Clock = RealClock()
        self.cameras = {
            name: _HostCamera(name, _shape(name, fields), self)
            for name, fields in config.cameras.items()
        }
        self._limiter = ActionLimiter(LimitSettings(start_speed=config.start_speed))
        self._context: Any = None
        self._commands: Any = None
        self._observations: Any = None
        self._message: _Message | None = None
        self._last_sent: Action = {}
        self._stopped = False

    @property
    def is_connected(self) -> bool:
        """Whether the sockets are open."""
        return self._context is not None

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
        address = f"tcp://{self.config.remote_ip}"
        self._context = self._zmq.Context()
        self._commands = self._context.socket(self._zmq.PUSH)
        self._commands.setsockopt(self._zmq.SNDHWM, _MOST_WAITING)
        self._observations = self._context.socket(self._zmq.PULL)
        try:
            self._commands.connect(f"{address}:{self.config.port_zmq_cmd}")
            self._observations.connect(f"{address}:{self.config.port_zmq_observations}")
            self._receive(1000 * self.config.connect_timeout_s)
            if self._message is None:
                raise DeviceNotConnected(
                    f"no observation from {address}:{self.config.port_zmq_observations} within "
                    f"{self.config.connect_timeout_s:g} s; is the host running?",
                    code="robot.host-silent",
                )
        except self._zmq.ZMQError as bad:
            self._close()
            raise DeviceNotConnected(f"{address}: {bad}", code="robot.host-silent") from bad
        except BaseException:
            self._close()
            raise
        self._stopped = False
        self._limiter.restart({})

    def _receive(self, wait_ms: float) -> None:
        """Take the newest message; older ones that wait before it are dropped."""
        if not self._observations.poll(round(wait_ms)):
            return
        parts: list[bytes] = []
        try:
            while True:
                parts = self._observations.recv_multipart(self._zmq.NOBLOCK)
        except self._zmq.Again:
            self._message = self._decode(parts)

    def _decode(self, parts: list[bytes]) -> _Message:
        """Return a message of the host.

        Raises:
            RobotError: it does not follow the protocol.
        """
        try:
            header = json.loads(parts[0])
            names = header.pop("_cams", [])
            state = {name: float(header[name]) for name in self.action_features}
            jpegs = dict(zip(names, parts[1:], strict=True))
        except (ValueError, KeyError, TypeError, AttributeError) as bad:
            raise RobotError(
                f"the host sent an invalid observation ({type(bad).__name__}: {bad})",
                code="robot.host-message",
            ) from bad
        images = {name: self._image(name, jpeg) for name, jpeg in jpegs.items()}
        number = 1 if self._message is None else self._message.number + 1
        return _Message(state, images, self.clock.now(), number)

    def _image(self, name: str, jpeg: bytes) -> Array:
        """Return a JPEG as RGB: the host encodes RGB arrays as they are, so no channel moves."""
        decoded = self._cv2.imdecode(np.frombuffer(jpeg, np.uint8), self._cv2.IMREAD_COLOR)
        if decoded is None:
            raise RobotError(
                f"the host sent an invalid image of camera {name!r}", code="robot.host-message"
            )
        image: Array = decoded
        return image

    def newest(self, max_age_s: float) -> _Message:
        """Return the newest message.

        Raises:
            DeviceNotConnected: it is older than ``max_age_s``.
        """
        if self._message is None or not self.is_connected:
            raise DeviceNotConnected(f"{self.name} is not connected")
        age = self._age(self._message)
        if age > max_age_s:
            raise DeviceNotConnected(
                f"the newest observation of the host is {age:.2f} s old", code="robot.host-silent"
            )
        return self._message

    def _age(self, message: _Message) -> float:
        return self.clock.now() - message.received_at

    def get_observation(self) -> RobotObservation:
        """Return the newest state and images of the host."""
        if self.is_connected:
            self._receive(self.config.polling_timeout_ms)
            if self._message is not None and self._age(self._message) > _STALE_S:
                # After a pause of this computer the socket's thread needs a moment.
                self._receive(1000 * _STALE_S)
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
        wished = {name: action[name] for name in self.action_features if name in action}
        sent = self._limiter.apply({**still, **wished}, self._measured_pose, self.clock.now())
        self._push(sent)
        return sent

    def _measured_pose(self) -> Action:
        state = self.newest(_STALE_S).state
        return {name: value for name, value in state.items() if name not in BASE}

    def _push(self, targets: Action) -> None:
        """Send targets without waiting; the host takes the newest of those that wait.

        Raises:
            DeviceNotConnected: the host takes none.
        """
        try:
            self._commands.send_string(json.dumps(targets), self._zmq.NOBLOCK)
        except self._zmq.Again:
            raise DeviceNotConnected(
                f"the host takes no actions: {_MOST_WAITING} wait", code="robot.host-silent"
            ) from None
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
        for socket in (self._commands, self._observations):
            socket.close(linger=_LINGER_MS)
        self._context.term()
        self._context, self._message, self._last_sent = None, None, {}

    def health(self) -> DeviceHealth:
        """Return the counts of clipped targets; the host has those of the bus."""
        return DeviceHealth(clipped=dict(self._limiter.clipped))


def _shape(name: str, fields: Any) -> ImageShape:
    """Return the configured shape of a camera's images.

    Raises:
        UsageError: width or height is missing.
    """
    height, width = (
        fields.get(key) if isinstance(fields, dict) else None for key in ("height", "width")
    )
    if isinstance(height, int) and isinstance(width, int) and min(height, width) > 0:
        return (height, width, 3)
    raise UsageError(
        f"--robot.cameras.{name}: width and height must be given, as whole numbers",
        code="camera.field-missing",
    )


PLUGIN = RobotPlugin(LekiwiClientConfig, LekiwiClient, "LeKiwi on the network, behind its host")
