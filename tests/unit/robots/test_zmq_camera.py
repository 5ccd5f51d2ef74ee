"""ZMQ cameras: messages as LeRobot's image server sends them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest
import zmq

from proctor.errors import DeviceNotConnected
from proctor.robots.base import Camera, RealClock
from proctor.robots.cameras.opencv import ColorMode
from proctor.robots.cameras.zmq import ZMQCameraConfig, make_camera
from tests.refusals import refuses
from tests.unit.robots.test_lekiwi_client import bomb

RED = np.zeros((24, 32, 3), np.uint8)
RED[...] = (200, 10, 10)


def jpeg(rgb: Any) -> str:
    """Encode an RGB array as LeRobot's server does: as if it were BGR."""
    return base64.b64encode(cv2.imencode(".jpg", rgb)[1].tobytes()).decode()


class ImageServer:
    """Publishes the message that a test sets, again and again."""

    def __init__(self) -> None:
        self._socket = zmq.Context.instance().socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.message: bytes | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            if self.message is not None:
                self._socket.send(self.message)
        self._socket.close()

    def show(self, **images: Any) -> None:
        sent = {name: jpeg(image) for name, image in images.items()}
        times = dict.fromkeys(images, 1.0)
        self.message = json.dumps({"timestamps": times, "images": sent}).encode()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[ImageServer]:
    server = ImageServer()
    yield server
    server.stop()


def camera_of(server: ImageServer, **fields: Any) -> Camera:
    given = {"camera_name": "head", "timeout_ms": 60_000, "warmup_s": 0.0} | fields
    config = ZMQCameraConfig(server_address="127.0.0.1", port=server.port, **given)
    return make_camera(config, RealClock())


def color(camera: Camera) -> list[int]:
    camera.connect()
    seen = camera.latest().image[12, 16].astype(int)
    camera.disconnect()
    return [int(value) for value in np.round(seen, -1)]


def test_the_named_image_of_a_message_arrives_as_rgb(server: ImageServer) -> None:
    server.show(wrist=np.zeros_like(RED), head=RED)

    assert color(camera_of(server, width=32, height=24, fps=30)) == [200, 10, 10]


def test_bgr_is_delivered_where_it_is_configured(server: ImageServer) -> None:
    server.show(head=RED)

    assert color(camera_of(server, color_mode=ColorMode.BGR)) == [10, 10, 200]


def test_the_only_image_of_a_message_may_have_any_name(server: ImageServer) -> None:
    server.show(other=RED)

    assert color(camera_of(server)) == [200, 10, 10]


def test_a_name_that_several_images_lack_is_refused(server: ImageServer) -> None:
    server.show(heads=RED, wrist=RED)

    with refuses(DeviceNotConnected, "camera.not-found"):
        camera_of(server).connect()


def test_images_of_another_size_are_refused(server: ImageServer) -> None:
    server.show(head=RED)

    with refuses(DeviceNotConnected, "camera.mode-unsupported"):
        camera_of(server, width=64, height=48, fps=30).connect()


@pytest.mark.parametrize(
    "message",
    [b"hello", b"{}", b'{"images": {"head": "%%%"}}', b'{"images": {"head": "aGVsbG8="}}'],
)
def test_invalid_messages_are_no_images(server: ImageServer, message: bytes) -> None:
    server.message = message

    with refuses(DeviceNotConnected, "camera.no-image"):
        camera_of(server, timeout_ms=300).connect()


def test_a_bomb_is_refused_by_its_header(server: ImageServer) -> None:
    for fields in ({}, {"width": 32, "height": 24, "fps": 30}):
        coded = base64.b64encode(bomb(b"png")).decode()
        server.message = json.dumps({"images": {"head": coded}}).encode()
        with refuses(DeviceNotConnected, "camera.mode-unsupported"):
            camera_of(server, **fields).connect()


def test_a_message_beyond_the_limit_never_arrives(
    server: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.robots.cameras.zmq._MOST_BYTES", 100)
    server.show(head=RED)
    with refuses(DeviceNotConnected, "camera.no-image"):
        camera_of(server, timeout_ms=200).connect()


def test_a_silent_server_is_refused_after_the_timeout(server: ImageServer) -> None:
    with refuses(DeviceNotConnected, "camera.no-image"):
        camera_of(server, timeout_ms=200).connect()
