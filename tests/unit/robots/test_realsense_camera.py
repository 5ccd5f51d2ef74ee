"""RealSense cameras, on a fake of Intel's module."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from proctor.errors import DeviceNotConnected, UsageError
from proctor.robots.base import Camera, RealClock
from proctor.robots.cameras.configs import camera_config, camera_configs, make_cameras
from proctor.robots.cameras.find import find_cameras
from proctor.robots.cameras.realsense import RealSenseCameraConfig, make_camera
from tests.refusals import refuses

DEVICES = {"0123": "RealSense D435", "0456": "RealSense D405", "0789": "RealSense D405"}


class FakeRealSense(SimpleNamespace):
    """The parts of pyrealsense2 that a camera needs."""

    camera_info = SimpleNamespace(serial_number="serial", name="name")
    stream = SimpleNamespace(color="color", depth="depth")
    format = SimpleNamespace(rgb8="rgb8", z16="z16")
    option = SimpleNamespace(
        exposure="exposure",
        gain="gain",
        white_balance="white_balance",
        enable_auto_exposure="auto_exposure",
        enable_auto_white_balance="auto_white_balance",
    )

    def __init__(self) -> None:
        self.options: list[tuple[str, float]] = []
        self.device = ""
        self.stream_asked: tuple[Any, ...] = ()
        self.streams: list[str] = []
        self.n_frames = 0
        self.refuses = False
        self.stopped = 0

    def context(self) -> Any:
        infos = [{"serial": serial, "name": name} for serial, name in DEVICES.items()]
        listed = [SimpleNamespace(get_info=info.__getitem__) for info in infos]
        return SimpleNamespace(query_devices=lambda: listed)

    def config(self) -> Any:
        def enable_device(serial: str) -> None:
            self.device = serial

        def enable_stream(*asked: Any) -> None:
            self.stream_asked = asked
            self.streams.append(asked[0])

        return SimpleNamespace(enable_device=enable_device, enable_stream=enable_stream)

    def pipeline(self) -> Any:
        return SimpleNamespace(start=self._start, stop=self._stop, wait_for_frames=self._frames)

    def _start(self, settings: Any) -> Any:
        if self.refuses:
            raise RuntimeError("Couldn't resolve requests")
        sensor = SimpleNamespace(set_option=lambda name, value: self.options.append((name, value)))
        device = SimpleNamespace(
            first_color_sensor=lambda: sensor, first_depth_sensor=lambda: sensor
        )
        return SimpleNamespace(get_device=lambda: device)

    def _stop(self) -> None:
        self.stopped += 1

    def _frames(self, timeout_ms: int) -> Any:
        time.sleep(0.005)
        color = np.zeros((48, 64, 3), np.uint8)
        color[0, 0] = (30, 20, 10)
        depth = np.full((48, 64), 1234, np.uint16)
        self.n_frames += 1
        color[0, 1] = self.n_frames % 200
        depth[0, 1] = self.n_frames % 200
        return SimpleNamespace(
            get_color_frame=lambda: SimpleNamespace(get_data=lambda: color),
            get_depth_frame=lambda: SimpleNamespace(get_data=lambda: depth),
        )


@pytest.fixture
def realsense(monkeypatch: pytest.MonkeyPatch) -> FakeRealSense:
    fake = FakeRealSense()
    monkeypatch.setitem(sys.modules, "pyrealsense2", fake)  # type: ignore[arg-type]
    return fake


def opened(name: str, **fields: Any) -> Camera:
    config = RealSenseCameraConfig(serial_number_or_name=name, warmup_s=0, **fields)
    camera = make_camera(config, RealClock())
    camera.connect()
    return camera


def test_a_color_camera_delivers_rgb_in_the_configured_mode(realsense: FakeRealSense) -> None:
    camera = opened("0123", width=64, height=48, fps=30)

    assert camera.latest().image[0, 0].tolist() == [30, 20, 10]
    assert realsense.device == "0123"
    assert realsense.stream_asked == ("color", 64, 48, "rgb8", 30)
    camera.disconnect()
    assert realsense.stopped == 1


def test_a_rotated_camera_is_asked_for_the_unrotated_size(realsense: FakeRealSense) -> None:
    camera = opened("0123", width=48, height=64, fps=30, rotation=90)
    image = camera.latest().image

    assert realsense.stream_asked[1:3] == (64, 48)
    assert image.shape == camera.shape == (64, 48, 3)
    assert image[0, -1].tolist() == [30, 20, 10]
    camera.disconnect()


def test_a_depth_camera_delivers_millimetres(realsense: FakeRealSense) -> None:
    camera = opened("0123", use_rgb=False, use_depth=True)
    image = camera.latest().image

    assert (image.dtype, image.shape, image[0, 0, 0]) == (np.uint16, (48, 64, 1), 1234)
    assert realsense.stream_asked == ("depth", "z16")
    camera.disconnect()


def test_color_and_depth_are_two_cameras_of_one_moment(realsense: FakeRealSense) -> None:
    fields = {"serial_number_or_name": "0123", "width": 64, "height": 48, "fps": 30}
    fields |= {"type": "intelrealsense", "use_depth": True, "warmup_s": 0}
    cameras = make_cameras(camera_configs({"front": fields}), RealClock())
    assert {name: camera.shape for name, camera in cameras.items()} == {
        "front": (48, 64, 3),
        "front_depth": (48, 64, 1),
    }
    for camera in cameras.values():
        camera.connect()
    assert realsense.streams == ["color", "depth"]
    for _ in range(20):
        depth = cameras["front_depth"].latest()
        color = cameras["front"].latest()
        assert depth.image.dtype == np.uint16
        if color.number == depth.number:
            assert color.image[0, 1, 0] == depth.image[0, 1, 0]
        assert depth.image[0, 1, 0] == depth.number % 200
        time.sleep(0.003)
    for camera in cameras.values():
        camera.disconnect()
    assert realsense.stopped == 1
    assert not cameras["front_depth"].is_connected


def test_the_name_of_the_depth_images_is_taken(realsense: FakeRealSense) -> None:
    fields = {"type": "intelrealsense", "serial_number_or_name": "0123"}
    fields |= {"width": 64, "height": 48, "fps": 30}
    given = {"front": fields | {"use_depth": True}, "front_depth": fields}
    with refuses(UsageError, "camera.invalid-name"):
        make_cameras(camera_configs(given), RealClock())


def test_fixed_exposure_ends_the_automatic_one(realsense: FakeRealSense) -> None:
    opened("0123", exposure=100.0, white_balance=4600.0).disconnect()

    assert realsense.options == [
        ("auto_exposure", 0),
        ("auto_white_balance", 0),
        ("exposure", 100.0),
        ("white_balance", 4600.0),
    ]


def test_a_camera_may_be_given_by_its_name(realsense: FakeRealSense) -> None:
    opened("RealSense D435").disconnect()

    assert realsense.device == "0123"


@pytest.mark.parametrize("name", ["9999", "RealSense D405"])
def test_a_missing_or_ambiguous_camera_is_refused(realsense: FakeRealSense, name: str) -> None:
    with refuses(DeviceNotConnected, "camera.not-found"):
        opened(name)


def test_an_unsupported_mode_is_refused(realsense: FakeRealSense) -> None:
    realsense.refuses = True

    with refuses(DeviceNotConnected, "camera.mode-unsupported"):
        opened("0123", width=64, height=48, fps=90)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"serial_number_or_name": "1", "use_rgb": False},
        {"serial_number_or_name": "1", "width": 64},
        {"serial_number_or_name": "1", "rotation": 30},
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any]) -> None:
    with refuses(UsageError, "camera.invalid-value"):
        camera_config({"type": "intelrealsense"} | fields, "robot.cameras.front")


def test_intels_package_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyrealsense2", None)

    with refuses(UsageError, "extra.missing"):
        make_camera(RealSenseCameraConfig(serial_number_or_name="1"), RealClock())


def test_connected_cameras_are_listed(realsense: FakeRealSense) -> None:
    found = find_cameras("intelrealsense")

    assert {camera.id: camera.name for camera in found} == DEVICES
    assert all(isinstance(camera.config, RealSenseCameraConfig) for camera in found)
