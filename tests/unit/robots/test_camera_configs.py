"""Cameras of a robot, from the text of its flag to checked configs."""

from __future__ import annotations

from typing import Any

import pytest

from proctor.errors import UsageError
from proctor.robots.base import RealClock
from proctor.robots.cameras.configs import camera_configs, make_cameras
from proctor.robots.cameras.opencv import ColorMode, OpenCVCameraConfig
from proctor.robots.cameras.zmq import ZMQCameraConfig

FRONT = {"type": "opencv", "index_or_path": 0, "width": 640, "height": 480, "fps": 30}


def test_lerobots_yaml_gives_typed_configs_in_order() -> None:
    configs = camera_configs(
        "{front: {type: opencv, index_or_path: 0, width: 640, height: 480, fps: 30}, "
        "far: {type: zmq, server_address: 10.0.0.2, width: 320, height: 240, fps: 15}}"
    )

    assert list(configs) == ["front", "far"]
    assert configs["front"] == OpenCVCameraConfig(width=640, height=480, fps=30)
    assert configs["far"] == ZMQCameraConfig(
        server_address="10.0.0.2", width=320, height=240, fps=15
    )


@pytest.mark.parametrize("nothing", [None, {}, "{}"])
def test_a_robot_may_have_no_cameras(nothing: Any) -> None:
    assert camera_configs(nothing) == {}


def test_values_may_be_text_and_enums() -> None:
    config = camera_configs({"front": FRONT | {"fps": "15", "color_mode": "bgr"}})["front"]

    assert isinstance(config, OpenCVCameraConfig)
    assert (config.fps, config.color_mode) == (15, ColorMode.BGR)


def test_a_path_stays_text_and_a_number_in_quotes_is_an_index() -> None:
    path = camera_configs({"a": FRONT | {"index_or_path": "/dev/video2"}})["a"]
    number = camera_configs({"a": FRONT | {"index_or_path": "2"}})["a"]

    assert isinstance(path, OpenCVCameraConfig)
    assert isinstance(number, OpenCVCameraConfig)
    assert (path.index_or_path, number.index_or_path) == ("/dev/video2", 2)


@pytest.mark.parametrize("field", ["width", "height", "fps"])
def test_size_and_rate_are_required_in_a_robot(field: str) -> None:
    fields = {name: value for name, value in FRONT.items() if name != field}

    with pytest.raises(UsageError, match=field) as refused:
        camera_configs({"front": fields})

    assert refused.value.code == "camera.field-missing"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("{front: {type: opencv", "camera.invalid-value"),
        ("front", "camera.invalid-value"),
        ([FRONT], "camera.invalid-value"),
        ({"front": 0}, "camera.invalid-value"),
        (FRONT, "camera.invalid-name"),
        ({"a/b": FRONT}, "camera.invalid-name"),
        ({7: FRONT}, "camera.invalid-name"),
        ({"front": {"width": 640}}, "camera.field-missing"),
        ({"front": FRONT | {"type": "opencvv"}}, "plugin.unknown"),
        ({"front": FRONT | {"withd": 3}}, "camera.unknown-field"),
        ({"front": FRONT | {"fps": "fast"}}, "camera.invalid-value"),
        ({"front": FRONT | {"fps": 0}}, "camera.invalid-value"),
        ({"front": FRONT | {"width": -640}}, "camera.invalid-value"),
        ({"front": FRONT | {"width": 100_000}}, "camera.invalid-value"),
        ({"front": FRONT | {"height": 0}}, "camera.invalid-value"),
        ({"front": FRONT | {"color_mode": "cmyk"}}, "camera.invalid-value"),
        ({"front": FRONT | {"rotation": 45}}, "camera.invalid-value"),
        ({"front": FRONT | {"fourcc": "MJPEG"}}, "camera.invalid-value"),
        ({"front": FRONT | {"backend": 3}}, "camera.invalid-value"),
        ({"far": {"type": "zmq", "width": 1, "height": 1, "fps": 1}}, "camera.invalid-value"),
    ],
)
def test_bad_input_is_refused_in_one_line(given: Any, code: str) -> None:
    with pytest.raises(UsageError) as refused:
        camera_configs(given)

    assert refused.value.code == code
    assert "\n" not in str(refused.value)


def test_a_misspelt_field_is_answered_with_the_right_one() -> None:
    with pytest.raises(UsageError, match="'width'"):
        camera_configs({"front": FRONT | {"widht": 640}})


def test_cameras_know_their_shape_before_they_are_connected() -> None:
    cameras = make_cameras(camera_configs({"front": FRONT}), RealClock())

    assert cameras["front"].shape == (480, 640, 3)
    assert not cameras["front"].is_connected
