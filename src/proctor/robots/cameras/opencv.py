"""Cameras that OpenCV opens: USB cameras, and video files (type ``opencv``)."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from proctor.errors import DeviceNotConnected, MissingExtra, ProctorNote, UsageError
from proctor.features import Array
from proctor.robots.base import Camera, CameraConfig, CameraPlugin, Clock, ImageShape
from proctor.robots.cameras.reader import (
    FrameMissing,
    FramesEnded,
    FrameSource,
    ReaderCamera,
    ReaderLimits,
)
from proctor.robots.cameras.v4l2 import query_device

ANY_BACKEND, V4L2 = 0, 200
BACKENDS = (ANY_BACKEND, V4L2, 700, 800, 1000, 1200, 1400)
"""OpenCV's numbers: any, V4L2, DSHOW, PVAPI, ANDROID, AVFOUNDATION, MSMF; as LeRobot."""
_MJPG = "MJPG"
"""USB 2 carries 640x480 at 30 fps of two cameras only compressed."""
_FPS_TOLERANCE = 0.5
_MOST_MODES = 40


class ColorMode(Enum):
    """Order of an image's channels."""

    RGB = "rgb"
    BGR = "bgr"


@dataclass
class OpenCVCameraConfig(CameraConfig):
    """Flags of a camera that OpenCV opens; width and height are those after the rotation."""

    type: str = "opencv"
    index_or_path: int | str = 0
    """Number of the camera, its device file or a video file."""
    color_mode: ColorMode = ColorMode.RGB
    rotation: int = 0
    """Degrees clockwise: 0, 90, 180 or -90."""
    warmup_s: float = 1.0
    fourcc: str | None = None
    """Pixel format, as MJPG or YUYV; None: MJPG, else the camera's own."""
    backend: int = ANY_BACKEND
    loop: bool = False
    """Whether a video file begins anew at its end."""

    def __post_init__(self) -> None:
        if self.rotation not in (0, 90, 180, -90):
            raise ValueError(f"rotation must be 0, 90, 180 or -90, got {self.rotation}")
        if self.fourcc is not None and len(self.fourcc) != 4:
            raise ValueError(f"fourcc has four characters, as MJPG; got {self.fourcc!r}")
        if self.backend not in BACKENDS:
            known = ", ".join(str(backend) for backend in BACKENDS)
            raise ValueError(f"backend must be one of {known}, got {self.backend}")
        if isinstance(self.index_or_path, str) and self.index_or_path.isdigit():
            self.index_or_path = int(self.index_or_path)

    @property
    def video_file(self) -> Path | None:
        """The video file, if ``index_or_path`` is a file and not a device."""
        path = Path(str(self.index_or_path)).expanduser()
        is_file = isinstance(self.index_or_path, str) and path.is_file()
        return path if is_file else None


def import_cv2() -> Any:
    """Return the module ``cv2``."""
    try:
        import cv2
    except ModuleNotFoundError:
        raise MissingExtra("OpenCV", "robot") from None
    return cv2


def make_camera(config: OpenCVCameraConfig, clock: Clock) -> Camera:
    """Make the closed camera; OpenCV is imported now, so that it cannot be missing later."""
    cv2 = import_cv2()
    path = config.index_or_path
    if isinstance(path, str) and "://" not in path and not Path(path).expanduser().exists():
        raise UsageError(
            f"camera {path}: there is no such device or file; `proctor find-cameras` lists cameras",
            code="camera.not-found",
        )
    if config.video_file is not None:
        return ReaderCamera(_VideoFile(config, cv2), clock, ReaderLimits())
    limits = ReaderLimits(warmup_s=config.warmup_s)
    return ReaderCamera(_CaptureDevice(config, cv2), clock, limits)


class _OpenCVSource(FrameSource):
    """What capture devices and video files share: rotation, color order and shape."""

    def __init__(self, config: OpenCVCameraConfig, cv2: Any) -> None:
        self.description = f"opencv camera {config.index_or_path}"
        self._config = config
        self._cv2 = cv2
        self._capture: Any = None
        self._opened_shape: ImageShape | None = None
        turns = {90: cv2.ROTATE_90_CLOCKWISE, 180: cv2.ROTATE_180}
        turns[-90] = cv2.ROTATE_90_COUNTERCLOCKWISE
        self._turn = turns.get(config.rotation)

    @property
    def shape(self) -> ImageShape:
        """The configured shape, else the shape of the images."""
        if self._config.height is not None and self._config.width is not None:
            return (self._config.height, self._config.width, 3)
        if self._opened_shape is None:
            raise DeviceNotConnected(
                f"{self.description}: its size is known once it is connected",
                code="camera.not-connected",
            )
        return self._opened_shape

    def close(self) -> None:
        """Release the device."""
        if self._capture is not None:
            self._capture.release()
            self._capture = None

    def _finished(self, image: Any) -> Array:
        """Return a captured BGR image as configured."""
        if self._config.color_mode is ColorMode.RGB:
            image = self._cv2.cvtColor(image, self._cv2.COLOR_BGR2RGB)
        if self._turn is not None:
            image = self._cv2.rotate(image, self._turn)
        height, width, channels = image.shape
        self._opened_shape = (height, width, channels)
        return np.ascontiguousarray(image)


class _CaptureDevice(_OpenCVSource):
    """A camera that is attached to this machine, or a network stream."""

    def open(self) -> None:
        refused = ""
        for backend, fourcc in self._ways():
            capture = self._cv2.VideoCapture(self._config.index_or_path, backend)
            if not capture.isOpened():
                capture.release()
                continue
            refused = self._set_mode(capture, fourcc)
            if not refused:
                self._capture = capture
                return
            capture.release()
        if refused:
            raise DeviceNotConnected(
                f"{self.description} {refused}{self._known_modes()}",
                code="camera.mode-unsupported",
            )
        raise DeviceNotConnected(
            f"{self.description} cannot be opened: another program may use it, or it is not "
            "there; `proctor find-cameras` lists cameras",
            code="camera.not-found",
        )

    def read(self) -> Array:
        arrived, image = self._capture.read()
        if not arrived or image is None:
            raise FrameMissing("the camera delivers no image")
        finished = self._finished(image)
        if finished.shape != self.shape:
            height, width, _ = finished.shape
            raise DeviceNotConnected(
                f"{self.description} sends images of {width}x{height}, configured are "
                f"{self.shape[1]}x{self.shape[0]}",
                code="camera.mode-unsupported",
            )
        return finished

    def _ways(self) -> Iterator[tuple[int, str | None]]:
        """Yield backends and pixel formats to try, the best first.

        OpenCV's own choice may be FFMPEG, which ignores size and rate.
        """
        on_linux = self._config.backend == ANY_BACKEND and sys.platform == "linux"
        for backend in (V4L2, ANY_BACKEND) if on_linux else (self._config.backend,):
            if self._config.fourcc is not None:
                yield backend, self._config.fourcc
            else:
                yield backend, _MJPG
                yield backend, None

    def _set_mode(self, capture: Any, fourcc: str | None) -> str:
        """Set format, size and rate; return what was refused, or an empty text."""
        cv2, config = self._cv2, self._config
        if fourcc is not None:
            code = cv2.VideoWriter.fourcc(*fourcc)
            capture.set(cv2.CAP_PROP_FOURCC, float(code))
            if config.fourcc is not None and int(capture.get(cv2.CAP_PROP_FOURCC)) != code:
                warnings.warn(
                    f"{self.description} does not use the pixel format {fourcc}",
                    ProctorNote,
                    stacklevel=1,
                )
        width, height = config.width, config.height
        if config.rotation in (90, -90):
            width, height = height, width
        asked = (
            ("width", cv2.CAP_PROP_FRAME_WIDTH, width, 0.0),
            ("height", cv2.CAP_PROP_FRAME_HEIGHT, height, 0.0),
            ("fps", cv2.CAP_PROP_FPS, config.fps, _FPS_TOLERANCE),
        )
        for _, prop, value, _ in asked:
            if value is not None:
                capture.set(prop, float(value))
        for name, prop, value, tolerance in asked:
            actual = capture.get(prop)
            if value is not None and abs(actual - value) > tolerance:
                return f"does not support {name}={value} (it offers {actual:g})"
        return ""

    def _known_modes(self) -> str:
        """Return the supported modes as text, where the system can list them."""
        path = self._config.index_or_path
        device = Path(f"/dev/video{path}") if isinstance(path, int) else Path(path)
        try:
            found = query_device(device) if sys.platform == "linux" else None
        except OSError:
            found = None
        if found is None or not found.modes:
            return ""
        modes = [str(mode) for mode in found.modes]
        more = f" and {len(modes) - _MOST_MODES} more" if len(modes) > _MOST_MODES else ""
        return f"; supported: {', '.join(modes[:_MOST_MODES])}{more}"


class _VideoFile(_OpenCVSource):
    """A video file that plays a camera: its images come one by one at the configured rate."""

    _due_at = 0.0

    def open(self) -> None:
        self._capture = self._cv2.VideoCapture(str(self._config.video_file))
        if not self._capture.isOpened():
            raise DeviceNotConnected(
                f"{self.description} is not a video that OpenCV can read", code="camera.not-found"
            )
        rate = self._config.fps or self._capture.get(self._cv2.CAP_PROP_FPS) or 30.0
        self._period_s = 1.0 / rate
        self._due_at = time.monotonic()

    def read(self) -> Array:
        time.sleep(max(0.0, self._due_at - time.monotonic()))
        self._due_at += self._period_s
        arrived, image = self._capture.read()
        if not arrived and self._config.loop:
            self._capture.set(self._cv2.CAP_PROP_POS_FRAMES, 0)
            arrived, image = self._capture.read()
        if not arrived:
            raise FramesEnded
        finished = self._finished(image)
        if self._config.width is None or self._config.height is None:
            return finished
        height, width, _ = self.shape
        resized: Array = self._cv2.resize(
            finished, (width, height), interpolation=self._cv2.INTER_AREA
        )
        return resized


PLUGIN = CameraPlugin(OpenCVCameraConfig, make_camera, "cameras that OpenCV opens, video files")
