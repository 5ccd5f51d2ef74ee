"""Fuzzing of the messages between actors and a learner."""

from __future__ import annotations

import io
import pickle
from functools import cache
from typing import Any

import numpy as np
import torch

from proctor.protocols.formats.protobuf import ChunkAssembler, encode_chunks
from proctor.protocols.formats.torch_archive import load_archive, save_archive
from proctor.rl.link import payloads
from proctor.rl.link.links import ActorWeights, InteractionMessage
from proctor.rl.transitions import Transition
from tests.fuzz.frames import frame_kind, tried
from tests.fuzz.sentinel import CANARY

_STATE = {"observation.state": np.zeros(3, np.float32)}
_SPEC = payloads.TransitionSpec({"observation.state": (3,)}, 2)
_MAX_BYTES = 2**20


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, (CANARY,)


@cache
def online_samples() -> list[bytes]:
    action, info = np.zeros(2, np.float32), {"discrete_penalty": -1.0, "is_intervention": 1.0}
    row = Transition(_STATE, action, 1.0, _STATE, True, complementary_info=info)
    weights = ActorWeights({"policy": {"w": np.ones((2, 2))}, "discrete_critic": {}}, 3)
    theirs = io.BytesIO()
    torch.save([{"state": {"observation.state": torch.zeros(1, 3)}, "action": _Bomb()}], theirs)
    made = [
        payloads.encode_transitions([row, row], for_lerobot=True),
        payloads.encode_weights(weights, for_lerobot=False),
        payloads.encode_interaction(InteractionMessage(1.0, 2, True, 0.5, {"Success": 1.0})),
        theirs.getvalue(),
        pickle.dumps({"Episodic reward": _Bomb()}),
    ]
    return [*made, *(frame for payload in made for frame in encode_chunks(payload))]


def decode_online(frame: bytes) -> None:
    for payload in (frame, tried(lambda: ChunkAssembler(_MAX_BYTES).add(frame))):
        if payload is None:
            continue
        rows = tried(lambda payload=payload: payloads.decode_transitions(payload))
        for row in rows or ():
            tried(lambda row=row: _SPEC.check(row))
        if rows:
            payloads.encode_transitions(rows, for_lerobot=False)
        tried(lambda payload=payload: payloads.decode_weights(payload))
        tried(lambda payload=payload: payloads.decode_interaction(payload))
        tried(lambda payload=payload: save_archive(load_archive(payload)) and None)


online_frames = frame_kind(online_samples, decode_online)
