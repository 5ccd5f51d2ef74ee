"""Compatibility with other implementations of the protocols."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from proctor.errors import ProtocolError
from proctor.features import IMAGE, STATE
from proctor.policies.remote.address import parse_addresses
from proctor.policies.remote.connection import ConnectionSettings
from proctor.policies.remote.websocket import VlaEvalConnection, WebSocket
from proctor.protocols import groot, groot_arrays, lerobot, vla_eval
from proctor.protocols.formats.protobuf import encode_fields
from proctor.protocols.inference_messages import InferenceRequest
from proctor.protocols.pickle.names import Record
from proctor.protocols.pickle.reader import load
from proctor.protocols.pickle.writer import Tensor, dump
from tests.refusals import refuses
from tests.unit.protocols.serving import asked, msgpack_numpy, npy, served

LOOKING = "tests.unit.protocols.serving:LOOKING"
PICTURE, STATES = np.full((16, 16, 3), 7, np.uint8), np.asarray([0.5, -0.5], np.float32)
pack = msgspec.msgpack.encode


def test_groot_is_spoken_in_both_dialects_with_both_kinds_of_arrays() -> None:
    old = {
        "video.front": npy(PICTURE[None]),
        "state.a": npy(STATES[None, :1]),
        "state.b": npy(STATES[None, 1:]),
        "annotation.human.action.task_description": ["go"],
    }
    for kind in (npy, msgpack_numpy):
        new = {
            "video": {"front": kind(PICTURE[None, None])},
            "state": {"arm": kind(STATES[None, None])},
            "language": {"annotation.human.task_description": [["go"]]},
        }
        with served(policy__type=LOOKING, protocol=["groot"], state_parts=["a:1", "b:1"]) as (
            url,
            _,
        ):
            request = {"endpoint": "get_action", "data": {"observation": new, "options": None}}
            reply = asked(url, request)
            flat = asked(url, {"endpoint": "get_action", "data": old})
        assert isinstance(reply, list)
        found = groot.decode_actions(pack(reply)).actions
        assert found is not None
        assert found.shape == (3, 2)
        assert set(flat) == {"action.action"}
        assert groot.decode_actions(pack(flat)).actions is not None


def test_groot_clients_ping_ask_for_rows_and_do_not_kill() -> None:
    with served(policy__type=LOOKING, protocol=["groot"], api_key="key") as (url, _):
        assert "Unauthorized" in asked(url, {"endpoint": "ping"})["error"]
        assert asked(url, {"endpoint": "ping", "api_token": "key"})["status"] == "ok"
        assert "error" in asked(url, {"endpoint": "kill", "api_token": "key"})
        seen = {
            "video": {"front": npy(np.stack([PICTURE, PICTURE])[:, None])},
            "state": {"arm": npy(np.stack([STATES, -STATES])[:, None])},
        }
        data = {"observation": seen, "options": None}
        actions, _ = asked(url, {"endpoint": "get_action", "data": data, "api_token": "key"})
    rows = groot_arrays.decode_arrays(actions["action"])
    assert rows.shape == (2, 3, 2)
    assert not np.array_equal(rows[0], rows[1])


def test_groot_actions_in_parts_lie_side_by_side() -> None:
    parts = {"action.arm": npy(np.zeros((4, 3))), "action.gripper": npy(np.ones(4))}
    found = groot.decode_actions(pack(parts)).actions
    assert found is not None
    assert found.shape == (4, 4)
    with refuses(ProtocolError, "protocol.wrong-shape"):
        groot.decode_actions(pack({"a": npy(np.zeros((4, 3))), "b": npy(np.ones(3))}))
    objects = msgpack_numpy(STATES) | {b"kind": b"O"}
    with refuses(ProtocolError, "protocol.invalid-array"):
        groot.decode_actions(pack({"a": objects}))


def test_vla_eval_clients_get_one_action_for_every_observation() -> None:
    with served(policy__type=LOOKING, protocol=["vla-eval"]) as (url, service):
        address = parse_addresses(url, None)[0]
        line = WebSocket(address, ConnectionSettings())

        def say(kind: vla_eval.MessageType, payload: Any) -> vla_eval.Message:
            line.send(vla_eval.encode(vla_eval.Message(kind, payload, 5)), 5)
            return vla_eval.decode(line.receive(5))

        hello = say(vla_eval.MessageType.HELLO, {"harness_version": "0.8.0", "protocol_version": 1})
        assert hello.payload["protocol_version"] == 1
        seen = {"images": {"agentview": PICTURE}, "states": STATES, "task_description": "go"}
        found = [say(vla_eval.MessageType.OBSERVATION, seen) for _ in range(4)]
        assert [message.payload["actions"].shape for message in found] == [(2,)] * 4
        assert {message.seq for message in found} == {5}
        assert service.batcher.answered == 2  # chunks of three
        broken = say(vla_eval.MessageType.OBSERVATION, {"images": {}})
        assert broken.kind is vla_eval.MessageType.ERROR
        line.close()
        whole = VlaEvalConnection(address, ConnectionSettings())
        ask = InferenceRequest({vla_eval.CAMERAS[0]: PICTURE, vla_eval.STATES[0]: STATES}, "go")
        assert whole.infer(ask).shape == (3, 2)
        whole.close()


def test_pictures_come_as_png_and_not_larger_than_they_say() -> None:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(PICTURE).save(file, format="PNG")

    def heard(shape: list[int]) -> Any:
        told = {"__image__": True, "format": "png", "data": file.getvalue(), "shape": shape}
        frame = pack({"type": "observation", "payload": {"p": told}, "seq": 1, "timestamp": 0.0})
        return vla_eval.decode(frame).payload["p"]

    assert np.array_equal(heard([16, 16, 3]), PICTURE)
    with refuses(ProtocolError, "protocol.wrong-shape"):
        heard([1, 1, 3])


class _Runs:
    """Runs a program if Python's own unpickler loads it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def test_a_hostile_pickle_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    good = {"task": "go", "x": 0.5}
    for protocol in range(6):
        for hostile in (_Runs(mark), {**good, "y": _Runs(mark)}, os.system, [Path(mark)]):
            with refuses(ProtocolError, "protocol.refused-pickle"):
                load(pickle.dumps(hostile, protocol))
    for program in (
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"ilerobot.x\nTimedAction\n.",  # INST
        b"\x80\x03clerobot.x\nTimedAction\n}b.",  # a state for a name
        b"\x80\x03cnumpy\ndtype\nX\x01\x00\x00\x00f\x85R}X\x01\x00\x00\x00ab.",
        b"\x82\x01.",  # from the registry of extensions
    ):
        with pytest.raises(ProtocolError):
            load(program)
    assert not mark.exists()
    with refuses(ProtocolError, "protocol.refused-pickle") as refused:  # a name of two lines
        load(b"\x80\x04\x8c\x05posix\x8c\x07sys\ntem\x93.")
    assert "\n" not in str(refused.value)


def test_pickles_of_arrays_tensors_and_records_are_read_as_what_they_are() -> None:
    import torch

    values = {"a": np.arange(6.0).reshape(2, 3), "i": PICTURE, "n": np.float32(2.5), "l": [1, "x"]}
    for protocol in (2, 3, 4, 5):
        found = load(pickle.dumps(values, protocol))
        assert np.array_equal(found["a"], values["a"])
        assert np.array_equal(found["i"], PICTURE)
        assert float(found["n"]) == 2.5
    tensors = load(pickle.dumps(list(torch.arange(12.0).reshape(3, 4))))
    assert np.array_equal(np.stack(tensors), np.arange(12.0).reshape(3, 4))
    ours = {"t": Tensor(STATES), "a": PICTURE, "n": -(2**40), "r": [None, True, 1.5, b"b", "é"]}
    theirs = pickle.loads(dump(ours))  # as LeRobot reads it
    assert torch.equal(theirs["t"], torch.from_numpy(STATES))
    assert np.array_equal(theirs["a"], PICTURE)
    assert theirs["n"] == -(2**40)
    assert theirs["r"] == [None, True, 1.5, b"b", "é"]


def test_what_lies_about_its_size_or_never_ends_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    wide: list[Any] = [0]
    for _ in range(60):
        wide = [wide, wide]
    many = b"\x80\x03" + b"r\xff\xff\xff\xff" + b"."
    for frame in (
        pickle.dumps(endless),
        pickle.dumps(wide),
        many,
        b"\x8e" + struct.pack("<Q", 2**60),
    ):
        with pytest.raises(ProtocolError):
            load(frame)


def test_a_robots_observation_becomes_features_by_its_setup() -> None:
    setup = lerobot.PolicySetup("act", "here", lerobot.lerobot_features({STATE: (2,)}), 4)
    assert lerobot.decode_setup(lerobot.encode_setup(setup)).features[STATE]["shape"] == [2]
    parts = lerobot.ObservationAssembler()
    (frame,) = lerobot.encode_observation(InferenceRequest({STATE: STATES}, "go"), 8)
    observed = parts.add(frame)
    assert observed is not None
    ask = lerobot.decode_request(observed, setup)
    assert ask.prompt == "go"
    assert np.array_equal(ask.observation[STATE], STATES)
    large = list(
        lerobot.encode_observation(
            InferenceRequest({IMAGE: np.zeros((1000, 1000, 3), np.uint8)}), 1
        )
    )
    assert len(large) == 2
    small = lerobot.ObservationAssembler(2**21)
    assert small.add(large[0]) is None
    with refuses(ProtocolError, "protocol.too-large"):
        small.add(large[1])
    with refuses(ProtocolError, "protocol.missing-input"):
        lerobot.decode_request(lerobot.TimedObservation(0, 0.0, {"task": "go"}), setup)
    assert lerobot.decode_actions(b"") is None
    chunk = lerobot.encode_actions(np.zeros((3, 2)), observed, 30.0)
    with refuses(ProtocolError, "protocol.refused-pickle") as refused:  # written for LeRobot only
        lerobot.decode_actions(chunk)
    assert "torch.tensor" in str(refused.value)
    timed = [Record("TimedAction", {"action": STATES, "timestep": n}) for n in range(3)]
    found = lerobot.decode_actions(encode_fields({1: dump(timed)}))
    assert found is not None
    assert found.shape == (3, 2)
