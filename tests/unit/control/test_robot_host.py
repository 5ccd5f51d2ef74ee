"""``proctor robot-host``: our client drives a LeKiwi on an emulated bus through its host."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proctor.config.robot_host import HostSettings
from proctor.control.robot_host import HostResult, HostSockets, serve_robot
from proctor.control.session import ControlSession
from proctor.errors import UsageError
from proctor.robots.arms.lekiwi_client import LekiwiClient, LekiwiClientConfig
from proctor.robots.base import Action
from tests.refusals import refuses
from tests.unit.robots.arm_bench import torques
from tests.unit.robots.test_camera_reader import HandClock
from tests.unit.robots.test_lekiwi import goal_speeds, robot_on

zmq = pytest.importorskip("zmq")
pytest.importorskip("cv2")


class Served:
    """A host in the main thread; ``client`` runs in another one and then ends the host."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.robot, self.bus = robot_on(folder)
        fields = {"address": "127.0.0.1", "port_zmq_cmd": 0, "port_zmq_observations": 0}
        self.settings = HostSettings(**{**fields, "max_loop_freq_hz": 200, **settings})
        self.failures: list[BaseException] = []

    def run(self, client: Any) -> HostResult:
        session = ControlSession(self.robot)
        with HostSockets(self.settings) as sockets:

            def act() -> None:
                try:
                    client(self, sockets)
                except BaseException as error:  # noqa: BLE001  raised in the main thread
                    self.failures.append(error)
                finally:
                    session.keys.press("q")

            with session:
                thread = threading.Thread(target=act)
                thread.start()
                result = serve_robot(session, sockets, self.settings)
                thread.join()
        assert self.failures == []
        return result


@contextmanager
def connected(sockets: HostSockets) -> Iterator[LekiwiClient]:
    ports = {"port_zmq_cmd": sockets.command_port}
    ports |= {"port_zmq_observations": sockets.observation_port}
    patience: dict[str, Any] = {"connect_timeout_s": 60.0, "polling_timeout_ms": 60_000}
    config = LekiwiClientConfig(
        remote_ip="127.0.0.1", cameras={}, start_speed=None, **ports, **patience
    )
    client = LekiwiClient(config)
    client.clock = HandClock()  # an observation is never too old
    client.connect()
    try:
        yield client
    finally:
        client.disconnect()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_client_reads_the_state_and_moves_arm_and_base(tmp_path: Path) -> None:
    def drive(served: Served, sockets: HostSockets) -> None:
        with connected(sockets) as client:
            seen = client.get_observation()
            assert set(seen) == set(served.robot.action_features)
            client.send_action({"arm_gripper.pos": 10.0, "theta.vel": 30.0})
            wait_until(lambda: goal_speeds(served.bus) == [853, 853, 853])
            gripper = served.bus.servos[5]
            assert gripper.get(gripper.goal_position) == pytest.approx(409, abs=2)

    served = Served(tmp_path, watchdog_timeout_ms=60_000)
    result = served.run(drive)
    assert result.actions >= 1
    assert (result.invalid, result.watchdog_stops) == (0, 0)
    assert goal_speeds(served.bus) == [0, 0, 0]
    assert not any(torques(served.bus))


def test_the_base_stops_when_no_action_comes(tmp_path: Path) -> None:
    def drive(served: Served, sockets: HostSockets) -> None:
        with connected(sockets) as client:
            client.send_action({"theta.vel": 30.0})
            wait_until(lambda: len(speeds) >= 2)

    served = Served(tmp_path, watchdog_timeout_ms=50)
    speeds: list[list[int]] = []
    send = served.robot.send_action

    def noting(action: Action) -> Action:
        sent = send(action)
        speeds.append(goal_speeds(served.bus))
        return sent

    served.robot.send_action = noting  # type: ignore[method-assign]
    result = served.run(drive)
    assert speeds[:2] == [[853, 853, 853], [0, 0, 0]]
    assert result.watchdog_stops >= 1


@pytest.mark.parametrize(
    "message",
    [b"", b"\xff\xfe", b"[1, 2]", b'{"x.vel": "fast"}', b'{"x.vel": NaN}', b'{"other": 1}', b"9"],
)
def test_messages_that_are_no_actions_are_counted_and_left_out(
    tmp_path: Path, message: bytes
) -> None:
    def send(served: Served, sockets: HostSockets) -> None:
        context = zmq.Context()
        socket = context.socket(zmq.PUSH)
        socket.connect(f"tcp://127.0.0.1:{sockets.command_port}")
        for content in (message, json.dumps({"theta.vel": 30.0}).encode()):
            socket.send(content)
        wait_until(lambda: goal_speeds(served.bus) == [853, 853, 853])
        socket.close(0)
        context.term()

    result = Served(tmp_path, watchdog_timeout_ms=60_000).run(send)
    assert (result.actions, result.invalid) == (1, 1)


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    settings = HostSettings(address="127.0.0.1", port_zmq_cmd=0, port_zmq_observations=0)
    with HostSockets(settings) as sockets:
        settings.port_zmq_cmd = sockets.command_port
        with refuses(UsageError, "robot.host-address"):
            HostSockets(settings)
