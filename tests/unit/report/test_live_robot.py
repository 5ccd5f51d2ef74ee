"""The live page of a robot: numbers and images of the newest step, served on this machine."""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request
import zlib

import numpy as np
import pytest

from proctor.features import Array
from proctor.report.server.live_robot import (
    LiveChannel,
    LiveRobot,
    LiveStatus,
    LiveStep,
    serving_live_robot,
)
from proctor.system.graphics.png import encode_png


def made() -> LiveRobot:
    channels = [LiveChannel("arm.pos", "degrees", -90, 90), LiveChannel("wheel.vel", "m/s")]
    return LiveRobot("Trials on arm", channels, ["front"], 20)


def pixels(png: bytes) -> Array:
    """Decode a PNG that ``encode_png`` made."""
    width, height, bits, colour = struct.unpack(">IIBB", png[16:26])
    size = struct.unpack(">I", png[33:37])[0]
    rows = np.frombuffer(zlib.decompress(png[41 : 41 + size]), np.uint8).reshape(height, -1)
    dtype = ">u2" if bits == 16 else np.uint8
    return rows[:, 1:].copy().view(dtype).reshape(height, width, 3 if colour == 2 else 1)


@pytest.mark.parametrize(("channels", "dtype"), [(3, np.uint8), (1, np.uint8), (1, np.uint16)])
def test_an_encoded_image_is_exact(channels: int, dtype: type) -> None:
    image = np.random.default_rng(0).integers(0, 60000, (5, 7, channels)).astype(dtype)
    assert np.array_equal(pixels(encode_png(image)), image)


def test_before_the_first_step_nothing_is_measured() -> None:
    state = made().state()
    assert state["joints"] == [None, None]
    assert (state["rate"], state["jitter_ms"]) == (None, None)
    assert made().image("front") is None


def test_rate_and_jitter_are_of_the_newest_ticks() -> None:
    robot = made()
    for tick in range(1000):
        robot.publish(LiveStep({}), tick / 20 + (0.01 if tick % 2 else 0))
    assert robot.state()["rate"] == pytest.approx(20, abs=0.2)
    assert robot.state()["jitter_ms"] == pytest.approx(10, abs=0.1)
    robot.publish(LiveStep({}), 99.0, is_tick=False)
    assert robot.state()["rate"] is None


def test_joints_and_targets_of_the_newest_step() -> None:
    robot = made()
    robot.publish(LiveStep({"arm.pos": 3.14159, "wheel.vel": float("nan")}, {"arm.pos": 4.0}), 0.0)
    assert robot.state()["joints"] == [3.14, None]
    assert robot.state()["sent"] == [4.0, None]


def test_large_and_deep_images_are_thinned_out() -> None:
    robot = made()
    robot.publish(LiveStep({"front": np.zeros((1000, 700, 3), np.uint8)}), 0.0)
    assert pixels(robot.image("front") or b"").shape == (334, 234, 3)
    robot.publish(LiveStep({"front": np.full((4, 4, 1), 900, np.uint16)}), 0.0)
    assert int(pixels(robot.image("front") or b"").max()) == 255


def test_the_server_shows_page_state_camera_and_reference() -> None:
    robot = made()
    robot.publish(LiveStep({"arm.pos": 1.0, "front": np.full((6, 8, 3), 9, np.uint8)}), 0.0)
    robot.status = LiveStatus("running", "trial 3", "Enter: start", 2, 40)
    robot.references = {"front": b"\x89PNG"}

    def get(path: str) -> bytes:
        with urllib.request.urlopen(f"{address}{path}") as answer:
            content: bytes = answer.read()
        return content

    with serving_live_robot(robot, "127.0.0.1", 0) as address:
        assert b"Trials on arm" in get("")
        state = json.loads(get("state"))
        assert (state["phase"], state["headline"], state["done"]) == ("running", "trial 3", 2)
        assert int(pixels(get("camera/front?step=1")).max()) == 9
        assert get("reference/front") == b"\x89PNG"
        for missing in ("camera/wrist", "reference/wrist", "run.json"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(missing)
            assert refused.value.code == 404


def test_another_site_cannot_read_the_cameras() -> None:
    with serving_live_robot(made(), "127.0.0.1", 0) as address:
        asked = urllib.request.Request(f"{address}state", headers={"Origin": "http://evil.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked)
        assert refused.value.code == 403
