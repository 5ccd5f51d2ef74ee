"""Fuzzing of protocol frames: requests to ``serve`` and replies to ``remote``."""

from __future__ import annotations

import os
import pickle
import random
import traceback
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from proctor.errors import ProctorError
from proctor.features import IMAGE, STATE, Feature, FeatureKind
from proctor.protocols import groot, groot_dialect, lerobot, openpi, vla_eval
from proctor.protocols.formats.protobuf import encode_fields
from proctor.protocols.inference_messages import InferenceRequest, ObservationField, ServerInfo
from proctor.protocols.pickle import reader as pickle_reader
from proctor.protocols.pickle import writer as pickle_writer
from proctor.serving.inputs import Inputs
from proctor.types import EpisodeSpec, Task
from tests.fuzz.hostile import NUMBERS, ODD, TEXTS, Draw
from tests.fuzz.sandbox import BrokenPromise, Sandbox
from tests.fuzz.sentinel import CANARY

AT_ONCE = 200
"""Frames of one case; a frame takes microseconds, a case milliseconds."""
_PICTURE, _STATE = np.zeros((4, 4, 3), np.uint8), np.zeros(2, np.float32)
_INPUTS = Inputs(
    {
        IMAGE: Feature(FeatureKind.VISUAL, (4, 4, 3), "uint8"),
        STATE: Feature(FeatureKind.STATE, (2,), "float32"),
    },
    n_obs_steps=1,
)
_SPEC = EpisodeSpec(Task("suite", 0, "task", "do it", 10, 10), 0, 7)
_ABOUT = ServerInfo("act", {STATE: ObservationField(FeatureKind.STATE, [2], "float32")}, 2)
_ACTIONS = np.zeros((3, 2), np.float32)
_EDGES = (
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 2000,
    b"\x81" * 2000, b"\xc1", b"\xc7\xff\xff", b"\xd6\xff", b"\xff" * 9, b"\x00" * 9,
    b"\x8e\xff\xff\xff\xff\x00\x00\x00\x00", b"\x96\xff\xff\xff\x7f\x00\x00\x00\x00",
    b"(" * 2000, b"r\xff\xff\xff\xff", b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
)  # fmt: skip


def _ask(camera: str, state: str) -> InferenceRequest:
    return InferenceRequest({camera: _PICTURE, state: _STATE}, "go", _SPEC, 3)


@cache
def openpi_samples() -> list[bytes]:
    ask = _ask(*openpi.CAMERAS[:1], openpi.STATE)
    return [
        openpi.encode_request(ask),
        openpi.encode_request(InferenceRequest(ask.observation, "go")),
        openpi.encode_reply(_ACTIONS, {"infer_ms": 1.0}),
        openpi.encode_metadata(_ABOUT),
    ]


@cache
def vla_eval_samples() -> list[bytes]:
    kind, message = vla_eval.MessageType, vla_eval.Message
    seen = vla_eval.observation_payload(_ask(vla_eval.CAMERAS[0], vla_eval.STATES[0]))
    picture = {"__image__": True, "format": "png", "shape": [4, 4, 3], "data": _png()}
    return [
        vla_eval.encode(message(kind.HELLO, vla_eval.hello_payload(_ABOUT), 1)),
        vla_eval.encode(message(kind.OBSERVATION, seen, 2)),
        vla_eval.encode(message(kind.OBSERVATION, {"images": {"a": picture}}, 2)),
        vla_eval.encode(message(kind.ACTION, vla_eval.actions_payload(_ACTIONS), 2)),
        vla_eval.encode(message(kind.ERROR, {"error": "no"}, 2)),
    ]


def _png() -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(_PICTURE).save(file, format="PNG")
    return file.getvalue()


@cache
def groot_samples() -> list[bytes]:
    usual = groot_dialect.Dialect()
    data = groot.observation_data(_ask(groot.CAMERAS[0], groot.STATE_NAME), usual)
    looks = {"video": groot_dialect.modality_config([0], ["video.cam"])}
    old = {"video.cam": _PICTURE[None], "state.arm": _STATE[None], "annotation.task": ["go"]}
    new = {"nd": True, "type": "<f4", "kind": "", "shape": [1, 3, 2], "data": _ACTIONS.tobytes()}
    return [
        groot.encode_request(groot.GrootRequest(groot.ACT, data, "token")),
        groot.encode_request(groot.GrootRequest(groot.ACT, old)),
        groot.encode_request(groot.GrootRequest(groot.ACT, data, msgpack_numpy=True)),
        groot.encode_actions([_ACTIONS], nested=True, msgpack_numpy=False),
        groot.encode_actions([_ACTIONS], nested=False, msgpack_numpy=True),
        groot.encode_reply(looks | {"state": {"__ModalityConfig__": True, "as_json": "{}"}}),
        groot.encode_reply([{"action": new}, {}]),
        groot.encode_reply({"error": "no"}),
    ]


@cache
def lerobot_samples() -> list[bytes]:
    setup = lerobot.PolicySetup("act", "somewhere", lerobot.lerobot_features({STATE: (2,)}))
    ask = InferenceRequest({STATE: _STATE}, "go")
    frames = [
        lerobot.encode_setup(setup),
        *lerobot.encode_observation(ask, 3),
        *lerobot.encode_observation(_ask(IMAGE, STATE), 3),
        lerobot.encode_own_actions(_ACTIONS),
    ]
    pickle_reader = [
        pickle.dumps(value, protocol)
        for value in (_Bomb(), os.system, [_STATE, OrderedDict(a=1)], {"a": np.float32(1)}, CANARY)
        for protocol in (0, 2, 4, 5)
    ]
    return [*frames, *pickle_reader, *(encode_fields({1: data}) for data in pickle_reader)]


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, (CANARY,)


def decode_openpi(frame: bytes) -> None:
    tried(lambda: _INPUTS.rows(openpi.decode_request(frame), {}))
    tried(lambda: openpi.decode_reply(frame))
    tried(lambda: openpi.decode_metadata(frame))


def decode_vla_eval(frame: bytes) -> None:
    message = tried(lambda: vla_eval.decode(frame))
    if message is not None:
        tried(lambda: _INPUTS.rows(vla_eval.decode_request(message), {}))
        tried(lambda: vla_eval.decode_reply(message, frame))
        tried(lambda: vla_eval.decode_hello(message, frame))


def decode_groot(frame: bytes) -> None:
    tried(lambda: groot_dialect.decode_dialect(frame))
    request = tried(lambda: groot.decode_request(groot.read_envelope(frame)))
    if request is not None:
        asked = tried(lambda: groot.decode_query(request.data))
        for ask in asked.rows[:3] if asked is not None else ():
            tried(lambda ask=ask: _INPUTS.rows(groot.crop_history(ask, 1), {}))
    tried(lambda: groot.decode_actions(frame))
    tried(lambda: groot.decode_server_info(frame))


def decode_lerobot(frame: bytes) -> None:
    setup = tried(lambda: lerobot.decode_setup(frame))
    observed = tried(lambda: lerobot.ObservationAssembler().add(frame))
    if observed is not None:
        tried(
            lambda: _INPUTS.rows(
                lerobot.decode_request(observed, setup or lerobot.PolicySetup("", "")), {}
            )
        )
    tried(lambda: lerobot.decode_actions(frame))
    tried(lambda: pickle_writer.dump(pickle_reader.load(frame)) and None)


def tried(hear: Callable[[], Any]) -> Any:
    """Return the decoded frame; None if it is refused with one line."""
    try:
        return hear()
    except ProctorError as refused:
        if "\n" in str(refused) or len(str(refused)) > 20_000:
            raise BrokenPromise("several lines", str(refused)[:300]) from None
        return None


def mutated_frame(chance: random.Random, good: list[bytes]) -> bytes:
    """Return a manipulated frame."""
    frame = bytearray(chance.choice(good))
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        place = chance.randrange(len(frame) + 1)
        match chance.randrange(8):
            case 0:
                frame[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                del frame[place:]
            case 2:
                frame[place:place] = chance.choice(_EDGES)
            case 3:
                frame[place : place + chance.randrange(8)] = chance.randbytes(chance.randrange(8))
            case 4:
                other = chance.choice(good)
                frame[place:] = other[chance.randrange(len(other)) :]
            case 5:
                frame[place:place] = frame[: chance.randrange(64)]
            case 6:
                frame[place:place] = msgspec.msgpack.encode(_odd(chance))
            case 7:
                return chance.randbytes(chance.randrange(64))
    return bytes(frame)


def _odd(chance: random.Random) -> Any:
    numbers = [n for n in NUMBERS if isinstance(n, float) or -(2**63) <= n < 2**64]
    texts = [text for text in TEXTS if text.isascii()]
    return chance.choice([chance.choice(numbers), chance.choice(texts), chance.choice(ODD)])


def _replaced(chance: random.Random, frame: bytes) -> bytes:
    """Return a MessagePack frame with one value replaced."""
    try:
        tree = msgspec.msgpack.decode(frame)
    except (msgspec.DecodeError, ValueError):
        return frame
    node = tree
    while isinstance(node, dict | list) and node:
        key = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if not isinstance(node[key], dict | list) or chance.random() < 0.4:
            node[key] = _odd(chance)
            break
        node = node[key]
    return msgspec.msgpack.encode(tree)


def frame_kind(good: Callable[[], list[bytes]], hear: Callable[[bytes], None]) -> Any:
    def attack(draw: Draw, sandbox: Sandbox) -> None:
        chance = random.Random(draw(st.integers(0, 2**64)))
        frames = [_frame(chance, good()) for _ in range(AT_ONCE)]
        with sandbox.watched(f"frames of {good.__name__}"):
            for frame in frames:
                _heard(frame, hear)

    return attack


def _frame(chance: random.Random, good: list[bytes]) -> bytes:
    if chance.random() < 0.3:
        return _replaced(chance, chance.choice(good))
    return mutated_frame(chance, good)


def _heard(frame: bytes, hear: Callable[[bytes], None]) -> None:
    """Decode one frame; a fault is a finding that names the frame."""
    try:
        hear(frame)
    except BrokenPromise:
        raise
    except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
        place = traceback.extract_tb(error.__traceback__)[-1]
        gist = f"{type(error).__name__} at {place.filename}:{place.lineno}"
        raise BrokenPromise(gist, f"{error}: {frame[:300]!r}") from None


openpi_frames = frame_kind(openpi_samples, decode_openpi)
vla_eval_frames = frame_kind(vla_eval_samples, decode_vla_eval)
groot_frames = frame_kind(groot_samples, decode_groot)
lerobot_frames = frame_kind(lerobot_samples, decode_lerobot)
