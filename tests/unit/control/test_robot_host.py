"""``proctor robot-host``: our client drives a LeKiwi on an emulated bus through its host."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from proctor.config.robot_host import HostSettings
from proctor.control.host_ports import HostPorts
from proctor.control.loop.session import ControlSession
from proctor.control.robot_host import HostResult, serve_robot
from proctor.errors import DeviceNotConnected, UsageError
from proctor.robots.arms.lekiwi_client import LekiwiClient, LekiwiClientConfig
from proctor.robots.base import Action
from proctor.robots.host_key import make_host_key, read_host_key
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
        self.notes: list[str] = []
        self.ended = False

    def run(self, client: Any) -> HostResult:
        session = self.session = ControlSession(self.robot)
        with HostPorts(self.settings, self.notes.append) as sockets:

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
                result = serve_robot(session, sockets, self.settings, self.notes.append)
                self.ended = True
                thread.join()
        assert self.failures == []
        return result


@contextmanager
def connected(sockets: HostPorts, **fields: Any) -> Iterator[LekiwiClient]:
    client = client_of(sockets, **fields)
    client.connect()
    try:
        yield client
    finally:
        client.disconnect()


def client_of(sockets: HostPorts, **fields: Any) -> LekiwiClient:
    ports = {"port_zmq_cmd": sockets.command_port}
    ports |= {"port_zmq_observations": sockets.observation_port}
    patience: dict[str, Any] = {"connect_timeout_s": 60.0, "polling_timeout_ms": 60_000}
    config = LekiwiClientConfig(
        remote_ip="127.0.0.1", cameras={}, start_speed=None, **{**ports, **patience, **fields}
    )
    client = LekiwiClient(config)
    client.clock = HandClock()  # an observation is never too old
    return client


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_client_reads_the_state_and_moves_arm_and_base(tmp_path: Path) -> None:
    def drive(served: Served, sockets: HostPorts) -> None:
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
    def drive(served: Served, sockets: HostPorts) -> None:
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


NO_ACTIONS = [
    b"", b"\xff\xfe", b"[1, 2]", b"9", b'{"other": 1}', b'{"x.vel": "fast"}', b'{"x.vel": "1"}',
    b'{"x.vel": true}', b'{"x.vel": NaN}', b'{"x.vel": -Infinity}', b'{"x.vel": 1e999}',
    b'{"x.vel": 1e300}', b'{"x.vel": 1' + b"0" * 400 + b"}", b"[" * 60_000,
    b'{"x.vel": ' * 5000 + b"1" + b"}" * 5000,
]  # fmt: skip


@pytest.mark.parametrize(
    "message",
    NO_ACTIONS,
    ids=lambda message: repr(message[:20]),
)
def test_messages_that_are_no_actions_are_counted_and_left_out(
    tmp_path: Path, message: bytes
) -> None:
    def send(served: Served, sockets: HostPorts) -> None:
        with pushing(sockets) as commands:
            for content in (message, json.dumps({"theta.vel": 30.0}).encode()):
                commands.send(content)
            wait_until(lambda: goal_speeds(served.bus) == [853, 853, 853])

    served = Served(tmp_path, watchdog_timeout_ms=60_000)
    result = served.run(send)
    assert (result.actions, result.invalid, len(served.notes)) == (1, 1, 1)


@contextmanager
def pushing(sockets: HostPorts) -> Iterator[Any]:
    """Open a socket of ZeroMQ's own library at the port of actions."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as commands:
        commands.setsockopt(zmq.LINGER, 0)
        commands.connect(f"tcp://127.0.0.1:{sockets.command_port}")
        yield commands


@pytest.mark.parametrize("message", [b"[" + b"1," * 30_000 + b"1]", b"x"], ids=["large", "small"])
def test_an_operator_that_floods_the_host_delays_neither_watchdog_nor_keys(
    tmp_path: Path, message: bytes
) -> None:
    def flood(served: Served, sockets: HostPorts) -> None:
        with pushing(sockets) as commands:
            commands.send(json.dumps({"theta.vel": 30.0}).encode())
            wait_until(lambda: goal_speeds(served.bus) == [853, 853, 853])
            ended = threading.Event()

            def push() -> None:
                while not ended.is_set():
                    if commands.poll(10, zmq.POLLOUT):
                        commands.send(message)

            thread = threading.Thread(target=push)
            thread.start()
            wait_until(lambda: goal_speeds(served.bus) == [0, 0, 0])
            served.session.keys.press("q")
            wait_until(lambda: served.ended)
            ended.set()
            thread.join()

    served = Served(tmp_path, watchdog_timeout_ms=50)
    result = served.run(flood)
    assert result.watchdog_stops >= 1
    assert result.invalid > 1
    assert len(served.notes) == 1, "said once"


def test_the_newest_of_many_actions_counts(tmp_path: Path) -> None:
    def send(served: Served, sockets: HostPorts) -> None:
        with pushing(sockets) as commands:
            for speed in (*range(60), 30.0):
                commands.send(json.dumps({"theta.vel": speed}).encode())
            wait_until(lambda: goal_speeds(served.bus) == [853, 853, 853])

    assert Served(tmp_path, watchdog_timeout_ms=60_000).run(send).actions <= 61


def test_a_second_operator_is_refused_until_the_first_one_has_gone(tmp_path: Path) -> None:
    def drive(served: Served, sockets: HostPorts) -> None:
        with connected(sockets), refuses(DeviceNotConnected, "robot.host-refused"):
            client_of(sockets).connect()
        with connected(sockets) as second:
            second.get_observation()

    served = Served(tmp_path, watchdog_timeout_ms=60_000)
    served.run(drive)
    assert len(served.notes) == 1


def test_a_client_with_the_key_drives_and_others_are_refused(tmp_path: Path) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    assert make_host_key(key)
    assert not make_host_key(key)
    assert key.stat().st_mode & 0o77 == 0
    make_host_key(other)

    def drive(served: Served, sockets: HostPorts) -> None:
        for wrong in (None, other):
            with refuses(DeviceNotConnected, "robot.host-refused"):
                client_of(sockets, key_file=wrong).connect()
        with connected(sockets, key_file=key) as client:
            client.send_action({"theta.vel": 30.0})
            wait_until(lambda: goal_speeds(served.bus) == [853, 853, 853])
            assert client.get_observation()["arm_gripper.pos"] == pytest.approx(50, abs=0.1)

    served = Served(tmp_path, watchdog_timeout_ms=60_000, key_file=key)
    served.run(drive)
    assert len(served.notes) == 2


def test_a_client_with_a_key_is_refused_by_a_host_without_one(tmp_path: Path) -> None:
    key = tmp_path / "key"
    make_host_key(key)

    def drive(served: Served, sockets: HostPorts) -> None:
        with refuses(DeviceNotConnected, "robot.host-refused"):
            client_of(sockets, key_file=key).connect()

    Served(tmp_path, watchdog_timeout_ms=60_000).run(drive)


@pytest.mark.parametrize("content", ["", "0" * 63, "g" * 64, "0" * 66, "é"])
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    for _ in range(2):
        with refuses(UsageError, "robot.host-key-file"):
            read_host_key(file, "--host.key_file")
        file.write_text(content)


@pytest.mark.parametrize(
    ("fields", "is_refused"),
    [
        ({}, False),
        ({"address": "0.0.0.0"}, True),
        ({"address": "192.168.1.5", "open": True}, False),
        ({"address": "192.168.1.5", "key_file": Path("key")}, False),
        ({"open": True, "key_file": Path("key")}, True),
    ],
)
def test_an_address_of_a_network_needs_a_key_or_an_open_host(
    fields: dict[str, Any], is_refused: bool
) -> None:
    settings = HostSettings(**fields)
    if is_refused:
        with refuses(UsageError, "robot.host-access"):
            settings.validate()
    else:
        settings.validate()


def test_connections_that_say_nothing_keep_no_operator_out(tmp_path: Path) -> None:
    def drive(served: Served, sockets: HostPorts) -> None:
        with ExitStack() as held:
            for port in (sockets.command_port, sockets.observation_port):
                for _ in range(80):
                    made = socket.create_connection(("127.0.0.1", port), 60)
                    held.enter_context(made)
            with connected(sockets) as client:
                client.get_observation()

    Served(tmp_path, watchdog_timeout_ms=60_000).run(drive)


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    settings = HostSettings(address="127.0.0.1", port_zmq_cmd=0, port_zmq_observations=0)
    with HostPorts(settings, print) as sockets:
        settings.port_zmq_cmd = sockets.command_port
        with refuses(UsageError, "robot.host-address"):
            HostPorts(settings, print)
