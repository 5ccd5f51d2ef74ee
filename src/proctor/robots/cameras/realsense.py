"""Intel RealSense cameras: color, depth or both (type ``intelrealsense``).

An adapter of Intel's package pyrealsense2, which is optional.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from proctor.errors import DeviceNotConnected, UsageError
from proctor.features import Array
from proctor.robots.base import Camera, CameraConfig, CameraFrame, CameraPlugin, Clock, ImageShape
from proctor.robots.cameras.opencv import ColorMode
from proctor.robots.cameras.reader import FrameMissing, FrameSource, ReaderCamera, ReaderLimits

_READ_TIMEOUT_MS = 1000
_PAIRS = 8
"""Color images of which the depth image is kept."""
_TURNS = {0: 0, 90: -1, 180: 2, -90: 1}
"""Rotation in degrees clockwise -> quarter turns counter-clockwise, as ``np.rot90`` counts."""


@dataclass
class RealSenseCameraConfig(CameraConfig):
    """Flags of a RealSense camera; width and height are those after the rotation."""

    type: str = "intelrealsense"
    serial_number_or_name: str = ""
    color_mode: ColorMode = ColorMode.RGB
    use_rgb: bool = True
    use_depth: bool = False
    """Distances in millimetres, uint16 [H, W, 1]; with ``use_rgb`` as a second camera."""
    rotation: int = 0
    """Degrees clockwise: 0, 90, 180 or -90."""
    warmup_s: float = 1.0
    exposure: float | None = None
    gain: float | None = None
    white_balance: float | None = None

    def __post_init__(self) -> None:
        if not self.serial_number_or_name:
            raise ValueError("serial_number_or_name is missing")
        if self.rotation not in _TURNS:
            raise ValueError(f"rotation must be 0, 90, 180 or -90, got {self.rotation}")
        if not (self.use_rgb or self.use_depth):
            raise ValueError("set use_rgb, use_depth or both")
        given = [value is not None for value in (self.width, self.height, self.fps)]
        if any(given) and not all(given):
            raise ValueError("width, height and fps are given together, or none of them")


def load_realsense() -> Any | None:
    """Return the module ``pyrealsense2``; None if it is not installed."""
    try:
        import pyrealsense2
    except ModuleNotFoundError:
        return None
    return pyrealsense2


def import_realsense() -> Any:
    """Return the module ``pyrealsense2``."""
    module = load_realsense()
    if module is None:
        raise UsageError(
            "pyrealsense2 is not installed; run: pip install pyrealsense2", code="extra.missing"
        )
    return module


def list_devices(realsense: Any) -> dict[str, str]:
    """Return the connected RealSense cameras: serial number -> name."""
    info = realsense.camera_info
    devices = realsense.context().query_devices()
    return {device.get_info(info.serial_number): device.get_info(info.name) for device in devices}


class _RealSensePipeline(FrameSource):
    """The streams of a RealSense camera; ``read`` returns color images if there are any."""

    def __init__(self, config: RealSenseCameraConfig, realsense: Any) -> None:
        self.description = f"RealSense camera {config.serial_number_or_name}"
        self._config = config
        self._realsense = realsense
        self._pipeline: Any = None
        self._opened_shape: ImageShape | None = None
        self._pairs: deque[tuple[Array, Array]] = deque(maxlen=_PAIRS)
        """The newest color images, each with the depth image of the same moment."""

    @property
    def shape(self) -> ImageShape:
        """The configured shape, else the shape of the images."""
        config = self._config
        if config.height is not None and config.width is not None:
            return (config.height, config.width, 3 if config.use_rgb else 1)
        if self._opened_shape is None:
            raise DeviceNotConnected(
                f"{self.description}: its size is known once it is connected",
                code="camera.not-connected",
            )
        return self._opened_shape

    def open(self) -> None:
        rs, config = self._realsense, self._config
        settings = rs.config()
        settings.enable_device(self._serial_number())
        streams = [(rs.stream.color, rs.format.rgb8)] if config.use_rgb else []
        streams += [(rs.stream.depth, rs.format.z16)] if config.use_depth else []
        width, height = config.width, config.height
        if config.rotation in (90, -90):
            width, height = height, width
        for stream, pixels in streams:
            if config.fps is None:
                settings.enable_stream(stream, pixels)
            else:
                settings.enable_stream(stream, width, height, pixels, config.fps)
        pipeline = rs.pipeline()
        try:
            profile = pipeline.start(settings)
        except RuntimeError as refused:
            raise DeviceNotConnected(
                f"{self.description} does not start as configured ({refused}); `proctor "
                "find-cameras` lists cameras",
                code="camera.mode-unsupported",
            ) from None
        self._pipeline = pipeline
        self._set_options(profile)

    def read(self) -> Array:
        try:
            frames = self._pipeline.wait_for_frames(_READ_TIMEOUT_MS)
        except RuntimeError as late:
            raise FrameMissing(str(late)) from None
        config = self._config
        depth = self._image(frames.get_depth_frame())[..., None] if config.use_depth else None
        if config.use_rgb:
            image = self._image(frames.get_color_frame())
            if config.color_mode is ColorMode.BGR:
                image = np.ascontiguousarray(image[..., ::-1])
            if depth is not None:
                depth.setflags(write=False)
                self._pairs.append((image, depth))
        else:
            assert depth is not None
            image = depth
        height, width, channels = image.shape
        self._opened_shape = (height, width, channels)
        return image

    def _image(self, frame: Any) -> Array:
        """Return a copy of a frame, rotated: the driver uses the memory of a frame again."""
        if not frame:
            raise FrameMissing("the camera delivers no image of this stream")
        turns = _TURNS[self._config.rotation]
        return np.ascontiguousarray(np.rot90(np.array(frame.get_data()), turns))

    def depth_of(self, image: Array) -> Array:
        """Return the depth image of a color image's moment; the newest one if that is long ago."""
        pairs = tuple(self._pairs)
        return next((depth for color, depth in pairs if color is image), pairs[-1][1])

    def close(self) -> None:
        if self._pipeline is not None:
            self._pipeline.stop()
            self._pipeline = None

    def _serial_number(self) -> str:
        """Return the serial number of the configured camera, which may be given by its name."""
        found = list_devices(self._realsense)
        wanted = self._config.serial_number_or_name
        matching = [serial for serial, name in found.items() if wanted in (serial, name)]
        if len(matching) == 1:
            return matching[0]
        listed = ", ".join(f"{serial} ({name})" for serial, name in found.items()) or "none"
        problem = "several have that name" if matching else "it is not connected"
        raise DeviceNotConnected(
            f"{self.description}: {problem}; connected: {listed}", code="camera.not-found"
        )

    def _set_options(self, profile: Any) -> None:
        """Set exposure, gain and white balance, which ends their automatic adjustment."""
        rs, config = self._realsense, self._config
        device = profile.get_device()
        sensor = device.first_color_sensor() if config.use_rgb else device.first_depth_sensor()
        if config.exposure is not None or config.gain is not None:
            sensor.set_option(rs.option.enable_auto_exposure, 0)
        if config.white_balance is not None:
            sensor.set_option(rs.option.enable_auto_white_balance, 0)
        for option, value in (
            (rs.option.exposure, config.exposure),
            (rs.option.gain, config.gain),
            (rs.option.white_balance, config.white_balance),
        ):
            if value is not None:
                sensor.set_option(option, value)


class _DepthCamera(Camera):
    """The depth images of a camera that also has color; the color camera opens and reads both."""

    def __init__(self, color: ReaderCamera, source: _RealSensePipeline) -> None:
        self._color, self._source = color, source

    @property
    def shape(self) -> ImageShape:
        """Height and width of the color images, and one channel."""
        return (*self._color.shape[:2], 1)

    @property
    def is_connected(self) -> bool:
        """Whether the color camera delivers images."""
        return self._color.is_connected

    def connect(self) -> None:
        """Do nothing: the color camera opens the device."""

    def latest(self, max_age_s: float = 0.5) -> CameraFrame:
        """Return the depth image of the newest color image's moment."""
        frame = self._color.newest(max_age_s)
        return replace(frame, image=self._source.depth_of(frame.image))

    def disconnect(self) -> None:
        """Do nothing: the color camera closes the device."""


def make_camera(config: RealSenseCameraConfig, clock: Clock) -> Camera:
    """Make the closed camera."""
    source = _RealSensePipeline(config, import_realsense())
    camera = ReaderCamera(source, clock, ReaderLimits(warmup_s=config.warmup_s))
    if config.use_rgb and config.use_depth:
        camera.depth = _DepthCamera(camera, source)
    return camera


PLUGIN = CameraPlugin(RealSenseCameraConfig, make_camera, "Intel RealSense cameras")
