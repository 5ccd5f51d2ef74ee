"""OpenCV cameras: a fake capture device, and real video files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from proctor.errors import DeviceNotConnected, ProctorNote, UsageError
from proctor.robots.base import Camera, RealClock
from proctor.robots.cameras import opencv
from proctor.robots.cameras.opencv import V4L2, ColorMode, OpenCVCameraConfig, make_camera
from proctor.robots.cameras.v4l2 import VideoDevice, VideoMode
from tests.refusals import refuses

PROPERTIES = {
    cv2.CAP_PROP_FOURCC: "fourcc",
    cv2.CAP_PROP_FRAME_WIDTH: "width",
    cv2.CAP_PROP_FRAME_HEIGHT: "height",
    cv2.CAP_PROP_FPS: "fps",
}
RAW = cv2.VideoWriter.fourcc(*"YUYV")
MJPG = cv2.VideoWriter.fourcc(*"MJPG")


class FakeDevice:
    """A USB camera: 640x480 at 30 fps as MJPG, at 10 fps uncompressed."""

    def __init__(self, backends: tuple[int, ...] = (V4L2, 0), formats: tuple[int, ...] = (MJPG,)):
        self.backends = backends
        self.formats = formats
        self.opened: list[int] = []
        self.sets: list[str] = []

    def __call__(self, index: Any, backend: int) -> FakeCapture:
        self.opened.append(backend)
        return FakeCapture(self, backend in self.backends)


class FakeCapture:
    """One opening of the fake device."""

    def __init__(self, device: FakeDevice, is_open: bool) -> None:
        self._device = device
        self._open = is_open
        self._values = {"fourcc": RAW, "width": 320, "height": 240, "fps": 10}

    def isOpened(self) -> bool:  # noqa: N802  OpenCV's name
        return self._open

    def set(self, prop: int, value: float) -> bool:
        name = PROPERTIES[prop]
        self._device.sets.append(name)
        if name == "fourcc" and value not in self._device.formats:
            return False
        fast = self._values["fourcc"] == MJPG
        if name == "fps" and value > (30 if fast else 10):
            return False
        if name in ("width", "height") and value not in (320, 240, 640, 480):
            return False
        self._values[name] = int(value)
        return True

    def get(self, prop: int) -> float:
        return float(self._values[PROPERTIES[prop]])

    def read(self) -> tuple[bool, Any]:
        time.sleep(0.005)
        image = np.zeros((self._values["height"], self._values["width"], 3), np.uint8)
        image[0, 0] = (10, 20, 30)  # blue, green, red
        return True, image

    def release(self) -> None:
        self._open = False


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    return use(FakeDevice(), monkeypatch)


def use(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    fake = SimpleNamespace(**{name: getattr(cv2, name) for name in dir(cv2)})
    fake.VideoCapture = device
    monkeypatch.setattr(opencv, "import_cv2", lambda: fake)
    monkeypatch.setattr(opencv.sys, "platform", "linux")
    return device


def opened(**fields: Any) -> Camera:
    camera = make_camera(OpenCVCameraConfig(warmup_s=0, **fields), RealClock())
    camera.connect()
    return camera


def test_v4l2_and_mjpg_are_tried_first(device: FakeDevice) -> None:
    camera = opened(width=640, height=480, fps=30)

    assert camera.latest().image.shape == (480, 640, 3)
    assert device.opened == [V4L2]
    assert device.sets == ["fourcc", "width", "height", "fps"]
    camera.disconnect()


def test_another_backend_is_tried_where_v4l2_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    device = use(FakeDevice(backends=(0,)), monkeypatch)
    camera = opened(width=640, height=480, fps=30)

    assert device.opened == [V4L2, V4L2, 0]
    camera.disconnect()


def test_a_camera_without_mjpg_is_used_in_its_own_format(monkeypatch: pytest.MonkeyPatch) -> None:
    use(FakeDevice(formats=()), monkeypatch)
    camera = opened(width=640, height=480, fps=10)

    assert camera.latest().image.shape == (480, 640, 3)
    camera.disconnect()


def test_images_are_rgb_unless_bgr_is_configured(device: FakeDevice) -> None:
    rgb, bgr = opened(), opened(color_mode=ColorMode.BGR)

    assert rgb.latest().image[0, 0].tolist() == [30, 20, 10]
    assert bgr.latest().image[0, 0].tolist() == [10, 20, 30]
    rgb.disconnect()
    bgr.disconnect()


@pytest.mark.parametrize(
    ("rotation", "corner"), [(90, (0, -1)), (180, (-1, -1)), (-90, (-1, 0)), (0, (0, 0))]
)
def test_width_and_height_are_those_after_the_rotation(
    device: FakeDevice, rotation: int, corner: tuple[int, int]
) -> None:
    upright = rotation in (90, -90)
    width, height = (480, 640) if upright else (640, 480)
    camera = opened(width=width, height=height, rotation=rotation)
    image = camera.latest().image

    assert image.shape == camera.shape == (height, width, 3)
    assert image[corner].tolist() == [30, 20, 10]
    camera.disconnect()


@pytest.mark.parametrize("wish", [{"width": 641, "height": 480}, {"fps": 60}])
def test_an_unsupported_mode_is_refused_with_the_supported_ones(
    device: FakeDevice, wish: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = (VideoMode("MJPG", 640, 480, 30.0), VideoMode("YUYV", 640, 480, 10.0))
    known = VideoDevice(Path("/dev/video0"), "fake", modes)
    monkeypatch.setattr(opencv, "query_device", lambda path: known)

    with refuses(DeviceNotConnected, "camera.mode-unsupported") as refused:
        opened(**wish)
    assert all(str(mode) in str(refused.value) for mode in modes)


def test_a_missing_camera_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use(FakeDevice(backends=()), monkeypatch)

    with refuses(DeviceNotConnected, "camera.not-found"):
        opened()


def test_a_refused_pixel_format_is_a_note_only(device: FakeDevice) -> None:
    camera = make_camera(OpenCVCameraConfig(fourcc="H264", warmup_s=0), RealClock())
    with pytest.warns(ProctorNote, match="H264"):
        camera.connect()

    assert camera.is_connected
    camera.disconnect()


def test_a_path_that_does_not_exist_is_refused_before_anything_starts() -> None:
    with refuses(UsageError, "camera.not-found"):
        make_camera(OpenCVCameraConfig(index_or_path="/dev/video77"), RealClock())


@pytest.fixture
def video(tmp_path: Path) -> Iterator[Path]:
    """A video of 5 images, each brighter than the one before."""
    path = tmp_path / "film.avi"
    writer = cv2.VideoWriter(str(path), MJPG, 20.0, (64, 48))
    for number in range(5):
        writer.write(np.full((48, 64, 3), 40 * number + 20, np.uint8))
    writer.release()
    return path


def play(video: Path, **fields: Any) -> Camera:
    return make_camera(OpenCVCameraConfig(index_or_path=str(video), **fields), RealClock())


def brightness_by_number(camera: Camera, images: int) -> dict[int, int]:
    """Return the steps of brightness of the images seen until number ``images`` or the end."""
    seen: dict[int, int] = {}
    camera.connect()
    while camera.is_connected and max(seen, default=0) < images:
        with contextlib.suppress(DeviceNotConnected):
            frame = camera.latest()
            seen[frame.number] = round((float(frame.image.mean()) - 20) / 40)
        time.sleep(0.001)
    return seen


def test_a_video_file_plays_a_camera_of_a_robot_and_ends(video: Path) -> None:
    camera = play(video, width=32, height=24, fps=20)
    seen = brightness_by_number(camera, 100)

    assert camera.shape == (24, 32, 3)
    assert all(step == number - 1 for number, step in seen.items())
    with refuses(DeviceNotConnected, "camera.ended"):
        camera.latest()
    camera.disconnect()


def test_a_video_file_can_be_repeated(video: Path) -> None:
    camera = play(video, fps=50, loop=True)
    seen = brightness_by_number(camera, 12)

    assert camera.is_connected
    assert all(step == (number - 1) % 5 for number, step in seen.items())
    camera.disconnect()


def test_a_video_file_has_its_own_size_where_none_is_configured(video: Path) -> None:
    camera = play(video)
    with refuses(DeviceNotConnected, "camera.not-connected"):
        _ = camera.shape
    camera.connect()

    assert camera.latest().image.shape == camera.shape == (48, 64, 3)
    camera.disconnect()


def test_a_file_that_is_no_video_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "film.mp4"
    text.write_text("not a film")

    with refuses(DeviceNotConnected, "camera.not-found"):
        play(text).connect()
