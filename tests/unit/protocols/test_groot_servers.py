"""Compatibility with GR00T servers and clients of several versions.

Their messages are encoded here by msgpack and numpy, not by Proctor's codec.
"""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from proctor.errors import ProtocolError, UsageError
from proctor.evaluation.run import Evaluation
from proctor.protocols import groot
from proctor.protocols.groot_arrays import decode_arrays
from proctor.protocols.groot_dialect import Dialect, decode_dialect
from proctor.protocols.inference_messages import InferenceRequest
from tests.refusals import refuses
from tests.unit.protocols.serving import asked, msgpack_numpy, npy, served

Run = Callable[..., Evaluation]
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode
CHUNK = np.zeros((4, 1), np.float32)
N15, N16, N17 = "N1.5", "N1.6", "N1.7 with msgpack_numpy"


def config(version: str, group: str, keys: list[str]) -> dict[str, Any]:
    told = {"delta_indices": [0], "modality_keys": keys}
    if version == N15:
        named = {
            **told,
            "modality_keys": [f"{group}.{k}" if group != "language" else k for k in keys],
        }
        return {"__ModalityConfig_class__": True, "as_json": json.dumps(named)}
    mark = "__ModalityConfig_class__" if version == N16 else "__ModalityConfig__"
    return {mark: True, "as_json": told}


class Server:
    """Answers like a version of Isaac-GR00T."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.seen: list[Any] = []
        self.array = msgpack_numpy if version == N17 else npy

    def answer(self, request: dict[str, Any]) -> bytes:
        match request["endpoint"]:
            case "get_modality_config":
                parts = {"video": ["front"], "state": ["x", "y"], "language": ["annotation.task"]}
                return pack(
                    {name: config(self.version, name, keys) for name, keys in parts.items()}
                )
            case "get_action":
                self.seen.append(request["data"])
                if self.version == N15:
                    return pack({"action.x": npy(CHUNK), "action.y": npy(CHUNK)})
                actions = {"x": self.array(CHUNK[None]), "y": self.array(CHUNK[None])}
                return pack([actions, {}])
            case "reset" if self.version != N15:
                return pack({})
            case endpoint:
                said = {"error": f"Unknown endpoint: {endpoint}"}
                return b"ERROR" if self.version == N15 else pack(said)


@contextlib.contextmanager
def running(answer: Callable[[dict[str, Any]], bytes]) -> Iterator[str]:
    """Serve like Isaac-GR00T: one request at a time, over REP."""
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                if socket.poll(20):
                    socket.send(answer(unpack(socket.recv())))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{port}"
        finally:
            ended.set()
            thread.join(60)


RENAMED = {"observation.image": "video/front", "observation.state": "state/x:1,state/y:1"}


@pytest.mark.parametrize("version", [N15, N16, N17])
def test_every_version_is_asked_as_it_wants(
    run: Run, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(version)
    flags = {"eval__use_async_envs": False, "env__episode_length": 8, "eval__n_episodes": 1}
    with running(server.answer) as url:
        run(policy__type="remote", policy__url=url, rename_map=RENAMED, **flags)
    told = server.seen[0]
    if version == N15:
        assert set(told) == {"video.front", "state.x", "state.y", "annotation.task"}
        video, state = np.load(io.BytesIO(told["video.front"]["as_npy"])), told["state.x"]
        assert video.shape == (1, 16, 16, 3)
        assert told["annotation.task"] == ["reach the goal"]
    else:
        asked = told["observation"]
        assert asked["language"] == {"annotation.task": [["reach the goal"]]}
        assert set(asked["state"]) == {"x", "y"}
        video, state = decode_arrays(asked["video"]["front"]), asked["state"]["x"]
        assert video.shape == (1, 1, 16, 16, 3)
    assert ("as_npy" in state) == (version != N17)
    assert video.dtype == np.uint8
    assert decode_arrays(state).dtype == np.float32
    assert "concatenated" in capsys.readouterr().err


def test_a_server_that_looks_at_other_things_is_refused_before_anything_starts(run: Run) -> None:
    with (
        running(Server(N16).answer) as url,
        pytest.raises(UsageError) as refused,
    ):
        run(policy__type="remote", policy__url=url)
    text = str(refused.value)
    del refused  # its traceback holds ZeroMQ's objects, which must not wait for a collection
    assert "state/x, state/y, video/front" in text


def test_a_wrong_key_is_refused_before_anything_starts(run: Run) -> None:
    def answer(request: dict[str, Any]) -> bytes:
        return pack({"error": "Unauthorized: Invalid API token"})

    with running(answer) as url, pytest.raises(UsageError) as refused:
        run(policy__type="remote", policy__url=url)
    text = str(refused.value)
    del refused
    assert "--policy.api_key" in text


def test_what_no_server_says_of_its_modalities_is_the_usual_dialect() -> None:
    for said in (b"ERROR", pack({"error": "no"}), pack([1]), pack({"video": {"as_json": "{"}})):
        assert decode_dialect(said) == decode_dialect(pack({}))
    with refuses(ProtocolError, "protocol.invalid-msgpack"):
        decode_dialect(b"\xc1")
    with refuses(ProtocolError, "protocol.invalid-array"):
        groot.decode_actions(pack([{"a": msgpack_numpy(CHUNK) | {b"type": "O"}}, {}]))


@pytest.mark.parametrize("nested", [True, False])
def test_a_state_of_doubles_is_sent_as_the_protocol_has_it(nested: bool) -> None:
    ask = InferenceRequest({"state/x": np.zeros(2), "video/a": np.zeros((2, 2, 3), np.uint8)}, "go")
    told = groot.observation_data(ask, Dialect(nested=nested))
    state = told["observation"]["state"]["x"] if nested else told["state.x"]
    assert state.dtype == np.float32


def test_clients_are_answered_as_they_ask_with_the_moments_that_they_send() -> None:
    moments = np.stack([np.full((16, 16, 3), shade, np.uint8) for shade in (10, 200)])
    states = np.asarray([[0.5, -0.5], [0.1, 0.2]], np.float32)
    found = []
    looking = "tests.unit.protocols.serving:LOOKING"
    parts = ["a:1", "b:1"]
    with served(policy__type=looking, protocol=["groot"], state_parts=parts) as (url, _):
        modalities = asked(url, {"endpoint": "get_modality_config"})
        assert modalities["video"]["as_json"]["delta_indices"] == [-1, 0]
        assert modalities["language"]["as_json"]["modality_keys"]
        for array, pictures in ((npy, moments), (msgpack_numpy, moments), (npy, moments[[1, 1]])):
            seen = {"video": {"front": array(pictures[None])}, "state": {"a": array(states[None])}}
            data = {"observation": seen, "options": None}
            actions, _ = asked(url, {"endpoint": "get_action", "data": data})
            assert ("as_npy" in actions["action"]) == (array is npy)
            found.append(decode_arrays(actions["action"]))
        late = {
            "video": seen["video"],
            "state": {"a": npy(states[None, :, :1]), "b": npy(states[None, :1, 1:])},
        }
        said = asked(url, {"endpoint": "get_action", "data": {"observation": late}})
        assert "state/a, state/b" in said["error"]
    assert not np.array_equal(found[0], found[2])  # the first of the two moments is looked at
