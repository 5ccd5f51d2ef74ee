"""Every decoder of a peer's bytes, with valid frames to begin with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from proctor.protocols import groot_arrays
from proctor.protocols.zmtp import frames as zmtp
from proctor.rl.replay.journal import complete_frames, frame
from proctor.runs.journal import EpisodeRecord
from proctor.runs.jsonl import UNREADABLE
from proctor.system.limits import decode_json
from tests.fuzz import frames, online_frames
from tests.fuzz.frames import tried


@dataclass(frozen=True)
class Decoder:
    """How bytes are decoded. It raises errors of ours only."""

    samples: Callable[[], list[bytes]]
    decode: Callable[[bytes], object]


def _decode_zmtp(data: bytes) -> None:
    tried(lambda: zmtp.check_greeting(data.ljust(zmtp.GREETING_BYTES)[: zmtp.GREETING_BYTES]))
    tried(lambda: zmtp.check_ready(data))
    if data:
        tried(lambda: zmtp.parse_flags(data[0]))
    zmtp.pong_reply(data)


def _decode_episode(line: bytes) -> None:
    import msgspec

    try:
        msgspec.json.decode(line, type=EpisodeRecord)
    except UNREADABLE:
        return


def _npy_samples() -> list[bytes]:
    import io

    file = io.BytesIO()
    np.save(file, np.zeros((2, 3), np.float32))
    return [file.getvalue()]


DECODERS = {
    "openpi": Decoder(frames.openpi_samples, frames.decode_openpi),
    "vla-eval": Decoder(frames.vla_eval_samples, frames.decode_vla_eval),
    "groot": Decoder(frames.groot_samples, frames.decode_groot),
    "lerobot": Decoder(frames.lerobot_samples, frames.decode_lerobot),
    "online": Decoder(online_frames.online_samples, online_frames.decode_online),
    "zmtp": Decoder(lambda: [zmtp.GREETING, zmtp.ready_command()], _decode_zmtp),
    "npy": Decoder(_npy_samples, lambda data: tried(lambda: groot_arrays.read_npy(data))),
    "json": Decoder(
        lambda: [b'{"x.vel": 0.5}', json.dumps({"a": [1, {"b": None}]}).encode()],
        lambda data: tried(lambda: decode_json(data)),
    ),
    "replay": Decoder(lambda: [frame(b"row") * 2], complete_frames),
    "episode": Decoder(lambda: [b'{"suite": "a", "task": "b", "task_id": 1}'], _decode_episode),
}
