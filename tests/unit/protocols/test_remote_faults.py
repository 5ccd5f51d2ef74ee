"""Faults that could silently change a remote run's result: it stops, restarts or warns."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.commands.evaluation.serve import opened
from proctor.config.builder import build
from proctor.config.serving import ServeConfig
from proctor.errors import ConnectionLost, EpisodeStateLost, ProtocolError, UsageError
from proctor.evaluation.run import Evaluation
from proctor.features import Array, Feature, FeatureKind, Interface
from proctor.policies.base import Batch, Policy, PolicyConfig, PolicyPlugin, PolicySpec
from proctor.policies.remote.address import Address, parse_addresses
from proctor.policies.remote.connection import ConnectionSettings, ServerConnection
from proctor.policies.remote.server_pool import EpisodeConnection, ServerPool
from proctor.policies.remote.websocket import OpenpiConnection, VlaEvalConnection, WebSocket
from proctor.protocols import lerobot, openpi, vla_eval
from proctor.protocols.formats.msgpack_arrays import pack
from proctor.protocols.formats.protobuf import encode_fields
from proctor.protocols.inference_messages import InferenceRequest, ServerInfo
from proctor.protocols.pickle.names import Record
from proctor.protocols.pickle.writer import dump
from proctor.serving.inputs import Inputs
from proctor.types import EpisodeSpec, Task
from tests.conftest import digests
from tests.refusals import refuses
from tests.unit.protocols.serving import odd_openpi, served

Run = Callable[..., Evaluation]
LOOKING = "tests.unit.protocols.serving:LOOKING"
SPEC = EpisodeSpec(Task("s", 0, "t", "go", 50, 10), 0, 1)
PICTURE = Feature(FeatureKind.VISUAL, (4, 4, 3), "uint8")


@pytest.fixture
def here(run: Run) -> Run:
    """Evaluate with all simulators in this process."""
    return lambda **flags: run(eval__use_async_envs=False, env__episode_length=12, **flags)


@dataclass
class LeaningConfig(PolicyConfig):
    """The only setting in which two of these policies differ."""

    lean: float = 0.0


class Leaning(Policy):
    """Returns a constant action."""

    def __init__(self, config: LeaningConfig, interface: Interface) -> None:
        self.spec = PolicySpec("leaning", n_action_steps=2)
        self._lean = config.lean

    def act(self, batch: Batch) -> Array:
        return np.full((len(batch.queries), 2, 2), self._lean, np.float32)


LEANING = PolicyPlugin(LeaningConfig, Leaning, "leans")
NAMED = "tests.unit.protocols.test_remote_faults:LEANING"


def test_servers_whose_policies_differ_by_a_flag_are_not_one_policy(here: Run) -> None:
    with (
        served(policy__type=NAMED, policy__lean=0.1) as (first, _),
        served(policy__type=NAMED, policy__lean=0.2) as (second, _),
        pytest.raises(UsageError) as refused,
    ):
        here(policy__type="remote", policy__url=f"{first},{second}")
    assert str(refused.value).count("leaning ") == 2


@dataclass(eq=False)
class _FakeLink:
    """A fake connection with scripted behaviour."""

    server_info: ServerInfo | None = None
    label: str = ""
    is_stateful: bool = False
    expected_inputs: tuple[str, ...] = ()
    lost_after: int | None = None
    asked: int = 0

    def start_episode(self, spec: EpisodeSpec) -> None:
        pass

    def infer(self, request: InferenceRequest) -> Array:
        self.asked += 1
        if self.lost_after is not None and self.asked > self.lost_after:
            raise ConnectionLost("gone")
        return np.zeros((1, 2))

    def end_episode(self) -> None:
        pass

    def close(self) -> None:
        pass


def pool(*links: _FakeLink) -> ServerPool:
    """Return a pool of one server that uses these connections, one after the other."""
    left = list(links)

    def dial(address: Address) -> ServerConnection:
        return left.pop(0)

    made = ServerPool(parse_addresses("ws://a:1", None), dial, retry_s=5.0)
    made.handshake()
    return made


def test_a_server_that_comes_back_with_another_policy_ends_the_run() -> None:
    one, other = (ServerInfo("p", {}, 2, fingerprint=name) for name in ("first", "other"))
    asking = pool(_FakeLink(one, lost_after=1), _FakeLink(other))
    episode_connection = EpisodeConnection(SPEC)
    asking.infer(episode_connection, InferenceRequest({}))
    with pytest.raises(ProtocolError) as refused:
        asking.infer(episode_connection, InferenceRequest({}))
    assert "p other and p" in str(refused.value)


def test_a_stranger_that_says_something_else_of_itself_is_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asking = pool(_FakeLink(label="one", lost_after=1), _FakeLink(label="other"))
    episode_connection = EpisodeConnection(SPEC)
    for _ in range(2):
        asking.infer(episode_connection, InferenceRequest({}))
    assert "the metadata of ws://a:1 have changed" in capsys.readouterr().err


def test_what_a_lost_server_remembered_is_lost_and_what_it_did_not_goes_on() -> None:
    forgetful = pool(_FakeLink(lost_after=1), _FakeLink())
    episode_connection = EpisodeConnection(SPEC)
    for _ in range(3):
        forgetful.infer(episode_connection, InferenceRequest({}))
    mindful = pool(_FakeLink(is_stateful=True, lost_after=1), _FakeLink(is_stateful=True))
    episode_connection = EpisodeConnection(SPEC)
    mindful.infer(episode_connection, InferenceRequest({}))
    with pytest.raises(EpisodeStateLost):
        mindful.infer(episode_connection, InferenceRequest({}))


def test_episodes_whose_server_vanished_begin_anew_and_are_the_same_bits(
    here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a random policy, which would draw other numbers if continued on another server."""
    asked: list[int] = []
    ask = OpenpiConnection.infer

    def cut_off(self: OpenpiConnection, question: InferenceRequest) -> Array:
        asked.append(question.step)
        if len(asked) in (3, 8):
            self.close()
        return ask(self, question)

    monkeypatch.setattr(OpenpiConnection, "infer", cut_off)
    with served(policy__type=LOOKING) as (url, _):
        found = here(policy__type="remote", policy__url=url)
    assert digests(found) == digests(here(policy__type=LOOKING))
    assert sum(row.attempts for row in found.rows) == 4 + 2
    assert 3 in asked[:8]  # it was in the middle of an episode


def test_a_server_that_forgot_an_episode_does_not_go_on_with_it() -> None:
    with served(policy__type=LOOKING) as (url, _):
        link = OpenpiConnection(parse_addresses(url, None)[0], ConnectionSettings())
        seen = {"observation.image": np.zeros((2, 16, 16, 3), np.uint8)}
        seen["observation.state"] = np.zeros((2, 2), np.float32)
        with pytest.raises(ProtocolError) as refused:
            link.infer(InferenceRequest(seen, "go", SPEC, step=8, history=True))
        assert "step 8" in str(refused.value)
        assert link.infer(InferenceRequest(seen, "go", SPEC, step=0, history=True)).shape == (3, 2)
        link.close()


def test_an_answer_to_another_question_is_none() -> None:
    answers = iter(
        [
            vla_eval.encode(vla_eval.Message(vla_eval.MessageType.HELLO, {"model_server": "x"}, 1)),
            vla_eval.encode(
                vla_eval.Message(vla_eval.MessageType.ACTION, {"actions": [0.5, 0.5]}, 1)
            ),
        ]
    )
    said: list[bytes] = []

    class Socket(WebSocket):
        def __init__(self, *_: Any) -> None:
            pass

        def send(self, frame: bytes, within_s: float) -> None:
            said.append(frame)

        def receive(self, within_s: float) -> bytes | str:
            return next(answers)

    import proctor.policies.remote.websocket as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WebSocket", Socket)
        link = VlaEvalConnection(parse_addresses("vla://a:1", None)[0], ConnectionSettings())
        with pytest.raises(ProtocolError):
            link.infer(InferenceRequest({}, "go"))


def test_lerobots_answer_to_somebody_elses_observation_is_none() -> None:
    timed = [Record("TimedAction", {"action": np.zeros(2), "timestep": 7 + n}) for n in range(3)]
    frame = encode_fields({1: dump(timed)})
    assert lerobot.decode_actions(frame, 7) is not None
    with refuses(ProtocolError, "protocol.stale-reply"):
        lerobot.decode_actions(frame, 8)


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        (["hand", "top"], openpi.CAMERAS, {"top": openpi.CAMERAS[0], "hand": openpi.CAMERAS[1]}),
        (["front", "top"], openpi.CAMERAS, {"front": openpi.CAMERAS[0], "top": openpi.CAMERAS[1]}),
        (["front", "top"], ["v/top", "v/front"], {"front": "v/front", "top": "v/top"}),
        (["image", "image2"], ["v/wrist", "v/image"], {"image": "v/image", "image2": "v/wrist"}),
        (["top"], ["v/wrist"], {}),
        (["top"], ["v/wrist", "v/agentview"], {"top": "v/agentview"}),
    ],
)
def test_strangers_cameras_are_told_apart_by_their_names(
    ours: list[str], theirs: list[str], found: dict[str, str]
) -> None:
    inputs = Inputs({f"observation.images.{name}": PICTURE for name in ours}, 1)
    taken = inputs.aliases(theirs, "state")
    assert taken == {f"observation.images.{name}": other for name, other in found.items()}


class Fragile(Policy):
    """Raises, or returns NaN, for certain states."""

    def __init__(self, config: PolicyConfig, interface: Interface) -> None:
        self.spec = PolicySpec("fragile", ("observation.state",))

    def act(self, batch: Batch) -> Array:
        state = batch.observations["observation.state"][:, :, :2]
        if (state > 99).any():
            raise ValueError("out of bounds")
        return np.where(state > 9, np.nan, -state)


FRAGILE = PolicyPlugin(PolicyConfig, Fragile, "breaks")


@pytest.mark.parametrize(("bad", "words"), [(10.0, "NaN or infinity"), (100.0, "out of bounds")])
def test_what_one_client_asks_breaks_nobody_else_in_its_batch(bad: float, words: str) -> None:
    told = {"policy.type": "tests.unit.protocols.test_remote_faults:FRAGILE", "env.type": "fake"}
    config = build(ServeConfig, told)
    answers: dict[float, Any] = {}
    with opened(config) as service:
        held, all_in = threading.Event(), threading.Event()
        service.batcher._inbox.put(
            lambda: all_in.wait(60)
        )  # all questions below are then one batch
        for place in (0.5, bad, 0.7):

            def tell(said: Any, place: float = place) -> None:
                answers[place] = said
                if len(answers) == 3:
                    held.set()

            rows = {"observation.state": np.full(2, place, np.float32)}
            service.batcher.submit(
                service.batcher.open_session(), InferenceRequest({}, "go"), rows, tell
            )
        all_in.set()
        assert held.wait(60)
    assert words in str(answers[bad])
    assert np.allclose(answers[0.5].actions, -0.5)
    assert np.allclose(answers[0.7].actions, -0.7)


def test_a_key_is_in_no_file_of_the_run(here: Run, tmp_path: Path) -> None:
    with served(api_key="SESAME") as (url, _):
        found = here(policy__type="remote", policy__url=url, policy__api_key="SESAME")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 3
    assert not [file for file in files if b"SESAME" in file.read_bytes()]
    (record,) = tmp_path.rglob("run.json")
    assert "policy.api_key" not in json.loads(record.read_text())["config"]["given"]
    assert found.rows


def test_doors_that_are_taken_are_said_before_a_policy_is_read() -> None:
    from proctor.serving.server import check_ports_free

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = build(ServeConfig, {"policy.type": "random", "port": [port]})
        with refuses(UsageError, "serve.address-unavailable") as refused:
            check_ports_free(config.endpoints, config.limits(None))
        assert f"port {port}: Address already in use" in str(refused.value)


def test_groot_is_never_said_to_be_encrypted(tmp_path: Path) -> None:
    from proctor.serving.server import _address

    told = {"policy.type": "random", "protocol": ["openpi", "groot"], "port": [1, 2]}
    config = build(ServeConfig, {**told, "tls_cert": "c", "tls_key": "k"})
    endpoints = [
        _address(endpoint, endpoint.port, config.limits(None)) for endpoint in config.endpoints
    ]
    assert endpoints == ["wss://127.0.0.1:1", "tcp://127.0.0.1:2"]


def test_a_state_is_cut_and_a_stranger_told_of(
    here: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[InferenceRequest] = []

    def answer(say: Any, frame: bytes) -> None:
        seen.append(openpi.decode_request(frame))
        say(openpi.encode_reply(np.zeros((6, 2)), {}))

    cut = {"observation.state": "observation/x:1,observation/y:1"}
    with odd_openpi(answer) as url:
        found = here(policy__type="remote", policy__url=url, rename_map=cut)
        wrong = {"observation.state": "observation/x:1,observation/y:2"}
        with pytest.raises(UsageError) as refused:
            here(policy__type="remote", policy__url=url, rename_map=wrong)
        assert "--rename_map" in str(refused.value)
    assert seen[0].observation["observation/x"].shape == (1,)
    assert found.rows


def test_garbage_of_every_kind_shows_its_first_bytes() -> None:
    frame = pack({"type": "action", "payload": {"moves": 1}, "seq": 2, "timestamp": 0.0})
    with refuses(ProtocolError, "protocol.missing-actions") as refused:
        vla_eval.decode_reply(vla_eval.decode(frame), frame)
    assert r"b'\x84\xa4type" in str(refused.value)


def test_serving_a_policy_with_a_history_notes_that_clients_connect_for_each_episode() -> None:
    from proctor.commands.evaluation.serve import _notes

    told = {"policy.type": "random", "protocol": ["openpi", "lerobot"]}
    config = build(ServeConfig, told)
    (note,) = _notes(config, ServerInfo("p", {}, 2, n_obs_steps=2))
    assert "uses the last 2 observations, here those of the last requests" in note
    assert "requests of openpi and lerobot do not say when an episode begins" in note
    assert "must open a new connection for each episode" in note
    assert not list(_notes(config, ServerInfo("p", {}, 2, remembers=False)))
