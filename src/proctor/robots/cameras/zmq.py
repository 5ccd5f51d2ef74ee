"""Cameras of another computer, sent with ZMQ in LeRobot's messages (type ``zmq``).

A message is JSON: ``{"timestamps": {NAME: SECONDS}, "images": {NAME: JPEG in base64}}``.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from proctor.errors import DeviceNotConnected, ProtocolError, did_you_mean
from proctor.features import Array
from proctor.protocols.zmtp.peer import MessageLimits, Role, ZmtpPeer
from proctor.protocols.zmtp.socket import ZmtpSocket, connect_peer
from proctor.robots.base import Camera, CameraConfig, CameraPlugin, Clock, ImageShape
from proctor.robots.cameras.opencv import ColorMode, import_cv2
from proctor.robots.cameras.peer_images import decode_peer_image, most_image_bytes
from proctor.robots.cameras.reader import FrameMissing, FrameSource, ReaderCamera, ReaderLimits
from proctor.system.limits import CycleLimits

_MOST_PORT = 65535
_MOST_BYTES = 2**24
"""Least limit of a message: eight JPEGs of 1920x1080 and more."""
_SHOWN = 40
"""Names of the server's cameras in an error, and characters of each."""
_SUBSCRIBE = b"\x01"
"""The message by which a subscriber asks for all messages."""
_CYCLE = CycleLimits(messages=1024, seconds=0.05)
_POLL_S = 0.2
"""The reader looks at least this often whether it shall stop."""


@dataclass
class ZMQCameraConfig(CameraConfig):
    """Flags of a camera that an image server sends."""

    type: str = "zmq"
    server_address: str = ""
    port: int = 5555
    camera_name: str = "zmq_camera"
    """Name in the server's messages; a server with one camera may use another name."""
    color_mode: ColorMode = ColorMode.RGB
    timeout_ms: int = 5000
    warmup_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.server_address:
            raise ValueError("server_address is missing")
        if not 0 < self.port <= _MOST_PORT:
            raise ValueError(f"port must be 1 to {_MOST_PORT}, got {self.port}")
        if self.timeout_ms < 1:
            raise ValueError(f"timeout_ms must be at least 1, got {self.timeout_ms}")


class ImageMessage(msgspec.Struct):
    """One message of an image server."""

    images: dict[str, str]
    timestamps: dict[str, float] = {}


class _Subscriber(FrameSource):
    """Receives the newest message; older ones are dropped."""

    def __init__(self, config: ZMQCameraConfig, cv2: Any) -> None:
        address = f"tcp://{config.server_address}:{config.port}"
        self.description = f"zmq camera {config.camera_name} at {address}"
        self._config = config
        self._cv2 = cv2
        self._line: ZmtpSocket | None = None
        self._opened_shape: ImageShape | None = None

    @property
    def shape(self) -> ImageShape:
        """The configured shape, else the shape of the received images."""
        if self._config.height is not None and self._config.width is not None:
            return (self._config.height, self._config.width, 3)
        if self._opened_shape is None:
            raise DeviceNotConnected(
                f"{self.description}: its size is known once it is connected",
                code="camera.not-connected",
            )
        return self._opened_shape

    @property
    def _agreed(self) -> tuple[int, int] | None:
        """Height and width: configured, else those of the first image."""
        if self._config.height is not None and self._config.width is not None:
            return (self._config.height, self._config.width)
        return None if self._opened_shape is None else self._opened_shape[:2]

    def _most_bytes(self) -> int:
        """Limit of a message, which has all cameras of the server, in base64."""
        one = most_image_bytes(*self._agreed) if self._agreed is not None else 0
        return max(_MOST_BYTES, 2 * one)

    def open(self) -> None:
        """Do nothing: ``read`` connects to the server, which need not be there yet."""

    def read(self) -> Array:
        """Wait for a message and return its image."""
        try:
            received = self._newest(min(_POLL_S, self._config.timeout_ms / 1000))
        except ProtocolError as bad:
            self.close()
            raise FrameMissing(f"the server cannot be read: {bad}") from None
        if received is None:
            raise FrameMissing("the server sends nothing")
        try:
            message = msgspec.json.decode(received, type=ImageMessage)
            jpeg = base64.b64decode(message.images[self._name_in(message)], validate=True)
        except (msgspec.MsgspecError, binascii.Error, RecursionError) as bad:
            raise FrameMissing(f"the server sent an invalid message ({bad})") from None
        return self._decoded(jpeg)

    def _newest(self, wait_s: float) -> bytes | None:
        """Return the newest message; wait for one if none has arrived."""
        if self._line is None:
            config = self._config
            peer = ZmtpPeer(Role.CLIENT, "SUB", MessageLimits(1, self._most_bytes()))
            self._line = connect_peer(config.server_address, config.port, peer, wait_s)
            peer.send([_SUBSCRIBE])
        until, newest = time.monotonic() + wait_s, None
        while newest is None and (left_s := until - time.monotonic()) > 0:
            for message in self._line.messages(_CYCLE):
                newest = message[0]
            if newest is None:
                self._line.wait(left_s)
        return newest

    def close(self) -> None:
        """Close the connection."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _name_in(self, message: ImageMessage) -> str:
        """Return the camera's name in ``message``; a server's only camera may have any name."""
        wanted = self._config.camera_name
        if wanted in message.images:
            return wanted
        if len(message.images) == 1:
            return next(iter(message.images))
        first = [name[:_SHOWN] for name in itertools.islice(message.images, _SHOWN)]
        names = ", ".join(first) or "none"
        raise DeviceNotConnected(
            f"{self.description}: the server has no camera {wanted!r}"
            f"{did_you_mean(wanted, first) or f' (it has: {names})'}",
            code="camera.not-found",
        )

    def _decoded(self, jpeg: bytes) -> Array:
        # LeRobot's server encodes RGB arrays as if they were BGR: decoding gives RGB again.
        try:
            image = decode_peer_image(self._cv2, jpeg, self._agreed)
        except ProtocolError as bad:
            if bad.code == "protocol.image-size":
                raise DeviceNotConnected(
                    f"{self.description} sends {bad}", code="camera.mode-unsupported"
                ) from None
            raise FrameMissing(f"the server sent {bad}") from None
        height, width, channels = image.shape
        self._opened_shape = (height, width, channels)
        bgr = self._config.color_mode is ColorMode.BGR
        return np.ascontiguousarray(image[..., ::-1] if bgr else image)


def make_camera(config: ZMQCameraConfig, clock: Clock) -> Camera:
    """Make the closed camera."""
    limits = ReaderLimits(connect_s=config.timeout_ms / 1000, warmup_s=config.warmup_s)
    return ReaderCamera(_Subscriber(config, import_cv2()), clock, limits)


PLUGIN = CameraPlugin(ZMQCameraConfig, make_camera, "cameras of another computer, through ZMQ")
