"""The client of a LeKiwi against a small host that speaks LeRobot's protocol."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from proctor.errors import DeviceNotConnected, ProctorWarning, RobotError, UsageError
from proctor.robots.arms import lekiwi_client
from proctor.robots.arms.lekiwi_client import LekiwiClient, LekiwiClientConfig
from tests.refusals import refuses
from tests.unit.robots.test_camera_reader import HandClock

zmq = pytest.importorskip("zmq")
cv2 = pytest.importorskip("cv2")

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
STATE = {f"arm_{name}.pos": float(n) for n, name in enumerate(JOINTS)}
STATE |= {"x.vel": 0.1, "y.vel": 0.0, "theta.vel": 0.0}
RED = np.full((4, 6, 3), (250, 10, 10), np.uint8)  # RGB


class Host:
    """Sends observations on request and keeps the newest command."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.commands = self.context.socket(zmq.PULL)
        self.observations = self.context.socket(zmq.PUSH)
        self.command_port = self.commands.bind_to_random_port("tcp://127.0.0.1")
        self.observation_port = self.observations.bind_to_random_port("tcp://127.0.0.1")

    def observe(self, state: dict[str, Any] = STATE, image: Any = RED) -> None:
        jpeg = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
        header = json.dumps({**state, "_cams": ["front"]}).encode()
        self.observations.send_multipart([header, jpeg])

    def serve(self, client: LekiwiClient) -> None:
        """Connect ``client``; a first observation waits for it."""
        first = threading.Thread(target=self.observe)  # a push waits for a peer
        first.start()
        client.connect()
        first.join()

    def command(self) -> dict[str, float]:
        assert self.commands.poll(60_000), "no command came"
        found: dict[str, float] = json.loads(self.commands.recv())
        return found

    def close(self) -> None:
        self.commands.close(0)
        self.observations.close(0)
        self.context.term()


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


def client_of(host: Host, **fields: Any) -> LekiwiClient:
    settings = {
        "start_speed": None,
        "connect_timeout_s": 60.0,
        "polling_timeout_ms": 60_000,
        **fields,
    }
    client = LekiwiClient(
        LekiwiClientConfig(
            remote_ip="127.0.0.1",
            port_zmq_cmd=host.command_port,
            port_zmq_observations=host.observation_port,
            cameras={"front": {"width": 6, "height": 4}},
            **settings,
        )
    )
    client.clock = HandClock()
    return client


@pytest.fixture
def client(host: Host) -> Iterator[LekiwiClient]:
    client = client_of(host)
    host.serve(client)
    yield client
    client.disconnect()


def test_the_newest_state_and_image_are_the_observation(client: LekiwiClient, host: Host) -> None:
    host.observe({**STATE, "arm_gripper.pos": 77.0})
    observation = client.get_observation()
    assert list(observation) == [*STATE, "front"]
    assert observation["arm_gripper.pos"] == 77.0
    assert np.abs(observation["front"].astype(int) - RED).max() < 20, "RGB stays RGB"
    assert client.observation_features["front"] == (4, 6, 3)


def test_an_image_that_did_not_change_has_the_same_number(client: LekiwiClient) -> None:
    first = client.cameras["front"].latest().number
    assert client.cameras["front"].latest().number == first


def test_a_missing_motion_of_the_base_is_sent_as_standstill(
    client: LekiwiClient, host: Host
) -> None:
    sent = client.send_action({"arm_gripper.pos": 3.0, "x.vel": 0.2, "unknown": 1.0})
    assert sent == {"x.vel": 0.2, "y.vel": 0.0, "theta.vel": 0.0, "arm_gripper.pos": 3.0}
    assert host.command() == sent


def test_the_base_stops_at_the_end(host: Host) -> None:
    client = client_of(host)
    host.serve(client)
    client.send_action({"x.vel": 0.2})
    assert host.command()["x.vel"] == 0.2
    client.disconnect()
    assert host.command()["x.vel"] == 0.0
    with pytest.raises(DeviceNotConnected):
        client.get_observation()


def test_a_stop_holds_the_pose_and_refuses_targets(client: LekiwiClient, host: Host) -> None:
    client.stop()
    command = host.command()
    assert command["x.vel"] == 0.0
    assert command["arm_gripper.pos"] == 5.0
    with pytest.raises(RobotError) as refused:
        client.send_action({"x.vel": 0.1})
    assert refused.value.code == "robot.stopped"


def test_a_silent_host_is_an_error(host: Host) -> None:
    client = client_of(host, connect_timeout_s=0.05)
    with pytest.raises(DeviceNotConnected) as silent:
        client.connect()
    assert silent.value.code == "robot.host-silent"
    assert not client.is_connected


def test_an_old_observation_is_an_error_unless_a_newer_one_comes(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(host, polling_timeout_ms=0)
    host.serve(client)
    host.observe({**STATE, "arm_gripper.pos": 77.0})
    monkeypatch.setattr(lekiwi_client, "_STALE_S", 60.0)
    client.clock.sleep_until(120.0)
    assert client.get_observation()["arm_gripper.pos"] == 77.0
    monkeypatch.setattr(lekiwi_client, "_STALE_S", 0.01)
    client.clock.sleep_until(121.0)
    with pytest.raises(DeviceNotConnected) as silent:
        client.get_observation()
    assert silent.value.code == "robot.host-silent"
    client.disconnect()


def jpeg(height: int, width: int) -> bytes:
    coded: bytes = cv2.imencode(".jpg", np.zeros((height, width), np.uint8))[1].tobytes()
    return coded


def bomb(form: bytes) -> bytes:
    """Return an image whose header announces 20,000x20,000 pixels."""
    sides = struct.pack(">HH", 20_000, 20_000)
    if form == b"jpeg":
        small = jpeg(8, 16)
        assert small.count(struct.pack(">HH", 8, 16)) == 1
        return small.replace(struct.pack(">HH", 8, 16), sides)
    sides = struct.pack(">II", 20_000, 20_000)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + sides + bytes(1000)


def header(**fields: Any) -> bytes:
    return json.dumps({**STATE, "_cams": ["front"], **fields}).encode()


INVALID = {
    "missing channels": [json.dumps({"x.vel": 1.0, "_cams": []}).encode()],
    "a word": [header(**{"x.vel": "fast"}), jpeg(4, 6)],
    "a boolean": [header(**{"x.vel": True}), jpeg(4, 6)],
    "NaN": [header(**{"x.vel": float("nan")}), jpeg(4, 6)],
    "infinity": [header(**{"x.vel": float("-inf")}), jpeg(4, 6)],
    "400 digits": [header(**{"x.vel": 10**399}), jpeg(4, 6)],
    "deep nesting": [b"[" * 60_000],
    "no object": [b"[1]"],
    "names of no image": [header(_cams=["front", "side"]), jpeg(4, 6)],
    "no names": [header(_cams=5), jpeg(4, 6)],
    "names of any type": [header(_cams=[{"a": 1}]), jpeg(4, 6)][:1],
    "no image": [header(), b"hello"],
    "another size": [header(), jpeg(8, 8)],
    "a JPEG bomb": [header(), bomb(b"jpeg")],
    "a PNG bomb": [header(), bomb(b"png")],
    "half an image": [header(), jpeg(4, 6)[:300]],
}


@pytest.mark.parametrize("message", INVALID.values(), ids=INVALID)
def test_an_invalid_message_is_left_out_and_counted_and_the_next_one_counts(
    client: LekiwiClient, host: Host, message: list[bytes]
) -> None:
    client.config.polling_timeout_ms = 0
    with pytest.warns(ProctorWarning) as said:
        wait_until(client, lambda: _sent(host, message) and client.invalid > 1)
    host.observe({**STATE, "arm_gripper.pos": 77.0})
    client.config.polling_timeout_ms = 60_000
    assert client.get_observation()["arm_gripper.pos"] == 77.0
    assert len(said) == 1


def _sent(host: Host, message: list[bytes]) -> bool:
    host.observations.send_multipart(message)
    return True


def wait_until(client: LekiwiClient, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        client.get_observation()


@pytest.mark.parametrize("parts", [[bytes(2**23)], [b"{}"] * 40], ids=["too long", "too many"])
def test_a_message_beyond_the_limits_ends_the_connection(
    client: LekiwiClient, host: Host, parts: list[bytes]
) -> None:
    host.observations.send_multipart(parts)
    with refuses(DeviceNotConnected, "robot.host-lost"):
        client.get_observation()


def test_a_host_that_sends_only_invalid_messages_is_an_error_that_says_so(host: Host) -> None:
    client = client_of(host, connect_timeout_s=0.5)
    sender = threading.Thread(target=lambda: host.observe({"x.vel": 1.0}))
    sender.start()
    with pytest.warns(ProctorWarning), refuses(DeviceNotConnected, "robot.host-silent"):
        client.connect()
    sender.join()
    assert client.invalid == 1


def test_an_image_that_the_host_does_not_send_is_an_error(client: LekiwiClient, host: Host) -> None:
    host.observations.send_multipart([json.dumps({**STATE, "_cams": []}).encode()])
    with refuses(DeviceNotConnected, "camera.no-image"):
        client.get_observation()


@pytest.mark.parametrize("fields", [{"width": 6}, {"width": 6, "height": 100_000}])
def test_a_camera_without_a_possible_size_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(UsageError) as refused:
        LekiwiClient(LekiwiClientConfig(remote_ip="x", cameras={"front": fields}))
    assert refused.value.code == "camera.field-missing"
