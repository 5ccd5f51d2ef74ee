"""Peers that vanish, are silent or speak nonsense: one line soon, for every protocol."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from proctor.cli import main
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.errors import ConnectionLost, MissingExtra, ProtocolError, UsageError
from proctor.policies.remote.address import Address, parse_addresses
from proctor.policies.remote.config import Gripper, RemoteConfig, Rotation, check_flags
from proctor.policies.remote.connection import ConnectionSettings, ServerConnection
from proctor.policies.remote.groot import GrootConnection
from proctor.policies.remote.lerobot import make_connector
from proctor.policies.remote.names import convert_gripper, convert_rotation
from proctor.policies.remote.websocket import OpenpiConnection, VlaEvalConnection
from proctor.protocols.inference_messages import InferenceRequest
from tests.refusals import refuses
from tests.unit.protocols.serving import peer, served

LINKS: dict[str, Callable[[Address, ConnectionSettings], ServerConnection]] = {
    "openpi": OpenpiConnection,
    "vla-eval": VlaEvalConnection,
    "groot": GrootConnection,
    "lerobot": make_connector(None),
}
SCHEMES = {"openpi": "ws", "vla-eval": "vla", "groot": "tcp", "lerobot": "grpc"}
SOON_S = 60.0


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def linked(protocol: str, url: str, **settings: Any) -> ServerConnection:
    return LINKS[protocol](parse_addresses(url, None)[0], ConnectionSettings(**settings))


@pytest.mark.parametrize("protocol", LINKS)
def test_a_server_that_vanishes_is_noticed_at_once(protocol: str) -> None:
    looking = "tests.unit.protocols.serving:LOOKING"
    with served(policy__type=looking, protocol=[protocol]) as (url, _):
        link = linked(protocol, url)
    with within(SOON_S), pytest.raises(ConnectionLost) as lost:
        link.infer(InferenceRequest({"a": np.zeros(3)}, "go"))
    assert "\n" not in str(lost.value)
    link.close()


@pytest.mark.parametrize("protocol", LINKS)
def test_who_accepts_and_says_nothing_or_nonsense_is_no_server(protocol: str) -> None:
    def silent(connection: socket.socket) -> None:
        while connection.recv(1000):
            pass

    def nonsense(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n" + b"\x00\xff" * 100)
        silent(connection)

    for behave in (silent, nonsense):
        with peer(behave) as port, within(SOON_S), pytest.raises(ProtocolError) as lost:
            linked(protocol, f"{SCHEMES[protocol]}://127.0.0.1:{port}", connect_s=0.3)
        assert "\n" not in str(lost.value)


def test_a_client_that_is_closed_by_another_thread_stops_waiting() -> None:
    with served(protocol=["groot"]) as (url, _):
        link = linked("groot", url)
        link.close()
        with refuses(ConnectionLost, "connection.lost"):
            link.infer(InferenceRequest({}, "go"))


@pytest.mark.parametrize(
    ("flags", "code", "named"),
    [
        ({"url": "grpc://10.0.0.1:8080"}, "server.untrusted", "--policy.trust"),
        ({"url": "ws://a", "timeout_s": 0.0}, "flag.out-of-range", "--policy.timeout_s"),
        ({"url": "ws://a", "in_flight": 0}, "flag.out-of-range", "--policy.in_flight"),
        ({"url": "ws://a", "served": "x"}, "flag.conflict", "--policy.served_type"),
        ({"url": "ws://a", "n_action_steps": 0}, "flag.out-of-range", "--policy.n_action_steps"),
    ],
)
def test_invalid_flags_are_refused(flags: dict[str, Any], code: str, named: str) -> None:
    with refuses(UsageError, code) as refused:
        check_flags(RemoteConfig(**flags))
    assert named in str(refused.value)


def test_rotations_and_grippers_are_as_the_server_has_them() -> None:
    half = np.asarray([1.0, 2.0, 3.0, np.pi / 2, 0.0, 0.0, 0.5, 0.6], np.float32)
    for rotation, wanted in (
        (Rotation.AXIS_ANGLE, [np.pi / 2, 0, 0]),
        (Rotation.QUATERNION_XYZW, [0.5**0.5, 0, 0, 0.5**0.5]),
        (Rotation.QUATERNION_WXYZ, [0.5**0.5, 0.5**0.5, 0, 0]),
        (Rotation.EULER, [np.pi / 2, 0, 0]),
    ):
        found = convert_rotation(half, RemoteConfig(rotation=rotation))
        assert np.allclose(found, [1, 2, 3, *wanted, 0.5, 0.6], atol=1e-6)
    actions = np.asarray([[0.1, 0.0], [0.2, 1.0]], np.float32)
    for gripper, last in (
        (Gripper.AS_IS, [0, 1]),
        (Gripper.NEGATED, [0, -1]),
        (Gripper.UNIT, [-1, 1]),
        (Gripper.UNIT_NEGATED, [1, -1]),
    ):
        assert np.allclose(convert_gripper(actions, gripper)[:, 1], last)


def test_a_missing_library_is_one_line_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = ("websockets", "proctor.policies.remote.websocket")
    for name in [name for name in sys.modules if name.startswith(loaded)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "proctor.policies.remote.websocket", raising=False)
    monkeypatch.setitem(sys.modules, "websockets", None)
    words = ["eval", "--policy.type=remote", "--policy.url=ws://127.0.0.1:1", "--env.type=fake"]
    assert main(words) == 2
    assert "pip install 'proctor[wire]'" in capsys.readouterr().err
    assert issubclass(MissingExtra, UsageError)


def test_the_settings_of_a_remote_run_are_read_back_as_they_were() -> None:
    flags = {"policy.type": "remote", "policy.url": "ws://a:1", "env.type": "fake"}
    config = build(EvalConfig, {**flags, "policy.protocol": "vla-eval", "policy.gripper": "unit"})
    assert build(EvalConfig, config.as_dict()).policy == config.policy


def test_serve_says_what_it_takes_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    assert "--protocol" in capsys.readouterr().out
    assert main(["serve", "--policy.type=random"]) == 2
    assert "--env.type" in capsys.readouterr().err
    assert main(["serve", "--policy.path=no/such/place/here"]) == 2
    assert "does not exist" in capsys.readouterr().err
