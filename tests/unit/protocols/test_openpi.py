"""openpi client and server: the same episodes as in process, and faulty peers."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.server import serve

from proctor.cli import main
from proctor.commands.evaluation.serve import opened
from proctor.config.builder import build
from proctor.config.serving import ServeConfig
from proctor.errors import ConnectionLost, PolicyError, ProtocolError, UsageError
from proctor.evaluation.run import Evaluation
from proctor.policies.remote.address import parse_addresses
from proctor.policies.remote.connection import ConnectionSettings
from proctor.policies.remote.websocket import OpenpiConnection, WebSocket
from proctor.protocols import openpi
from proctor.protocols.formats.msgpack_arrays import pack
from proctor.protocols.inference_messages import InferenceRequest
from proctor.serving.server import serving
from tests.conftest import digests
from tests.refusals import refuses
from tests.unit.protocols.serving import odd_openpi, peer, served

Run = Callable[..., Evaluation]
STEADY = "tests.unit.protocols.serving:STEADY"


@pytest.fixture
def here(run: Run) -> Run:
    """Evaluate with all simulators in this process."""
    return lambda **flags: run(eval__use_async_envs=False, **flags)


def remote(url: str) -> dict[str, Any]:
    return {"policy__type": "remote", "policy__url": url}


def zeros(frame: bytes) -> bytes:
    openpi.decode_request(frame)
    return openpi.encode_reply(np.zeros((3, 2), np.float32), {})


def link(url: str, **settings: Any) -> OpenpiConnection:
    return OpenpiConnection(parse_addresses(url, None)[0], ConnectionSettings(**settings))


def test_episodes_are_the_same_bits_as_in_process(here: Run) -> None:
    inputs = ["observation.image", "observation.state"]
    with served(policy__n_obs_steps=2, policy__inputs=inputs) as (url, service):
        over_the_wire = here(**remote(url))
    assert digests(over_the_wire) == digests(here(policy__n_action_steps=4))
    assert service.health()["answered"] > 4


def test_many_requests_are_in_flight_and_answered_together(run: Run) -> None:
    with served(policy__type=STEADY) as (url, service):
        run(**remote(url), eval__batch_size=4, eval__n_episodes=8, env__episode_length=10)
    assert service.batcher.batches < service.batcher.answered


def test_two_servers_share_the_work_and_one_that_is_lost_costs_nothing(here: Run) -> None:
    with served(policy__type=STEADY) as (first, one):
        here = partial(here, env__episode_length=6)
        alone = here(**remote(first))
        with served(policy__type=STEADY) as (second, two):
            both = here(**remote(f"{first},{second}"))
            assert counter_of(one)
            assert counter_of(two)
        after = here(**remote(f"{second},{first}"), policy__retry_s=5)
    assert digests(alone) == digests(both) == digests(after)


def counter_of(service: Any) -> int:
    return int(service.health()["answered"])


def test_a_server_that_vanishes_in_the_middle_is_waited_for(here: Run) -> None:
    answered = []

    def answer(say: Any, frame: bytes) -> None:
        answered.append(1)
        if len(answered) == 5:
            raise ConnectionResetError
        say(zeros(frame))

    with odd_openpi(answer) as url:
        evaluation = here(**remote(url), env__episode_length=12)
    assert len(evaluation.rows) == 4
    assert len(answered) == 17


def test_a_silent_server_ends_the_run_with_one_line(here: Run) -> None:
    flags = {"policy__timeout_s": 0.2, "policy__retry_s": 0.1}
    with (
        odd_openpi(lambda say, frame: None) as url,
        pytest.raises(PolicyError) as caught,
    ):
        here(**remote(url), **flags)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("said", "quoted"),
    [
        (b"\xc1\xc1garbage", r"b'\xc1\xc1garbage"),
        (pack({"action": 1}), "'actions'"),
        (pack([1, 2]), "list"),
        ("Traceback ...\nValueError: out of memory", "ValueError: out of memory"),
        (openpi.encode_reply(np.zeros((3, 9)), {}), "(3, 9)"),
        (openpi.encode_reply(np.full((3, 2), np.nan), {}), "NaN"),
    ],
)
def test_a_lying_server_ends_the_run_with_its_first_words(
    here: Run, said: bytes | str, quoted: str
) -> None:
    lying = odd_openpi(lambda say, frame: say(said))
    with lying as url, pytest.raises(PolicyError) as refused:
        here(**remote(url))
    assert quoted in str(refused.value)


def test_a_stranger_whose_chunks_are_over_before_they_come_is_told_of_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["eval", "--policy.type=remote", "--env.type=fake", "--eval.use_async_envs=false"]
    words += ["--eval.n_episodes=1", "--eval.latency_steps=3", "--output_dir=out"]
    with odd_openpi(lambda say, frame: say(zeros(frame))) as url:
        assert main([*words, f"--policy.url={url}"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "--eval.latency_steps=3" in said.splitlines()[-1]


def test_what_is_no_server_is_refused_before_anything_starts(here: Run) -> None:
    with pytest.raises(UsageError) as refused:
        here(**remote("ws://127.0.0.1:1"))
    assert "--policy.url" in str(refused.value)

    def http_only(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    with peer(http_only) as port, pytest.raises(UsageError) as refused:
        here(**remote(f"ws://127.0.0.1:{port}"), policy__timeout_s=1)
    assert "--policy.url" in str(refused.value)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("", "flag.missing"),
        ("http://a:1", "flag.invalid-value"),
        ("ws://", "flag.invalid-value"),
        ("ws://a:99999", "flag.invalid-value"),
        ("ws://a:1,ws://a:1", "flag.duplicate"),
        ("ws://a:1,tcp://b:2", "flag.conflict"),
    ],
)
def test_an_invalid_address_is_refused(url: str, code: str) -> None:
    with refuses(UsageError, code) as refused:
        parse_addresses(url, None)
    assert "--policy.url" in str(refused.value)


def test_names_conventions_and_chunks_are_as_the_server_wants_them(here: Run) -> None:
    seen: list[InferenceRequest] = []

    def answer(say: Any, frame: bytes) -> None:
        seen.append(openpi.decode_request(frame))
        say(openpi.encode_reply(np.full((5, 2), 0.25), {}))

    flags = {"rename_map": {"observation.image": "observation/top"}, "policy__gripper": "unit"}
    with odd_openpi(answer) as url:
        evaluation = here(**remote(url), **flags, env__episode_length=10, policy__n_action_steps=2)
    assert set(seen[0].observation) == {"observation/top", "observation/state"}
    assert seen[0].observation["observation/top"].dtype == np.uint8
    assert seen[0].prompt == "reach the goal"
    assert seen[0].episode is None  # a stranger is told nothing that its protocol does not know
    assert len(seen) == sum(-(-row.steps // 2) for row in evaluation.rows)


def test_a_stranger_is_answered_and_told_what_is_wrong() -> None:
    inputs = ["observation.image", "observation.state"]
    with served(policy__inputs=inputs) as (url, _):
        line = link(url)
        image = np.zeros((16, 16, 3), np.uint8)
        state = np.zeros(2)
        good = InferenceRequest({openpi.CAMERAS[0]: image, openpi.STATE: state}, "go")
        assert line.infer(good).shape == (4, 2)
        for bad, named in (
            ({openpi.STATE: state}, "'observation.image'"),
            ({openpi.CAMERAS[0]: image[:8], openpi.STATE: state}, "uint8 [8, 16, 3]"),
            ({openpi.CAMERAS[0]: image / 255, openpi.STATE: state}, "uint8"),
            ({openpi.CAMERAS[0]: image, openpi.STATE: state * np.nan}, "NaN"),
        ):
            with pytest.raises(ProtocolError) as refused:
                line.infer(InferenceRequest(bad, "go"))
            assert named in str(refused.value)
        assert line.infer(good).shape == (4, 2)
        line.close()


def test_health_is_told_to_anybody_and_the_policy_only_to_those_with_the_key() -> None:
    with served(api_key="secret") as (url, _):
        with urllib.request.urlopen(url.replace("ws:", "http:") + "/healthz") as answer:
            assert answer.read() == b"OK\n"
        for wrong in ({}, {"api_key": "secreT"}):
            with pytest.raises(ConnectionLost) as lost:
                link(url, **wrong)
            assert "401" in str(lost.value)
        link(url, api_key="secret").close()
        link(f"{url}/?api_key=secret").close()


def test_who_says_too_much_or_comes_too_often_is_cut_off() -> None:
    with served(max_connections=1, max_message_mb=1) as (url, _):
        line = link(url)
        with pytest.raises(ConnectionLost) as lost:
            link(url)
        assert "503" in str(lost.value)
        with pytest.raises(ConnectionLost):
            line.infer(InferenceRequest({"a": np.zeros(2**21, np.uint8)}))
        line.close()
        until = time.monotonic() + 60
        again = None
        while again is None and time.monotonic() < until:
            try:
                again = link(url)
            except ConnectionLost:
                time.sleep(0.02)
        assert again is not None
        again.close()


def test_the_silent_are_cut_off() -> None:
    def listen(url: str) -> None:
        silent = WebSocket(parse_addresses(url, None)[0], ConnectionSettings())
        for _ in range(2):  # the server says one thing first
            silent.receive(60)

    with served(idle_s=0.2) as (url, _), pytest.raises(ConnectionLost):
        listen(url)


def test_a_client_between_two_requests_answers_no_pings_and_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ping_interval", "ping_timeout"):  # 20 s each otherwise
        monkeypatch.setitem(serve.__kwdefaults__, name, 0.1)
    request = {openpi.CAMERAS[0]: np.zeros((16, 16, 3), np.uint8), openpi.STATE: np.zeros(2)}
    with served() as (url, _):
        line = link(url)
        time.sleep(0.6)
        assert line.infer(InferenceRequest(request, "go")).shape == (4, 2)
        line.close()


def test_a_client_that_vanishes_leaves_the_others_alone() -> None:
    with served() as (url, service):
        gone, stays = link(url), link(url)
        gone.close()
        stays.infer(InferenceRequest({}))
        until = time.monotonic() + 60
        while len(service.batcher._sessions) > 1 and time.monotonic() < until:
            time.sleep(0.01)
        assert len(service.batcher._sessions) == 1
        stays.close()


def test_sixteen_clients_share_batches() -> None:
    config = build(ServeConfig, {"policy.type": STEADY, "env.type": "fake", "port": [0]})
    ask = InferenceRequest({openpi.STATE: np.zeros(2, np.float32)})

    def work(url: str) -> None:
        line = link(url)
        for _ in range(5):
            line.infer(ask)
        line.close()

    with (
        opened(config) as service,
        serving(config.endpoints, service, config.limits(None)) as (url,),
    ):
        clients = [threading.Thread(target=work, args=(url,)) for _ in range(16)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert service.batcher.answered == 80
        assert service.batcher.batches < 60


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"protocol": ["openpie"]}, "'openpi'"),
        ({"protocol": ["openpi", "openpi"]}, "--protocol"),
        ({"port": [1, 2]}, "--port"),
        ({"host": "0.0.0.0"}, "--tls_cert"),
        ({"host": "0.0.0.0", "protocol": ["groot"]}, "--trust"),
        ({"tls_cert": "a"}, "--tls_key"),
    ],
)
def test_a_server_that_makes_no_sense_is_refused(flags: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError) as refused:
        build(ServeConfig, {"policy.type": "random", **flags})
    assert name in str(refused.value)


def test_a_policy_that_does_not_say_what_it_looks_at_needs_a_benchmark() -> None:
    config = build(ServeConfig, {"policy.type": "random"})
    with pytest.raises(UsageError) as refused, opened(config):
        pass
    assert "--env.type" in str(refused.value)
