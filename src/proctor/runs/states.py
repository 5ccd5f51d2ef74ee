"""Where things were in each episode: ``states.jsonl``, for the report page.

One line per finished episode, after its line in the journal. Episodes of older versions, and those
that errored, have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from proctor.runs.jsonl import read_jsonl
from proctor.runs.records import NonNegativeInt
from proctor.types import EpisodeKey, EpisodeResult, StateTrace

STATES_FILE = "states.jsonl"
_MAX_NAMES = 256

_Name = Annotated[str, msgspec.Meta(max_length=200)]


@dataclass(frozen=True)
class StateRecord:
    """One line of the file. Arrays are the bytes of little-endian float32 numbers, in base64."""

    suite: str
    task_id: NonNegativeInt
    episode_index: NonNegativeInt
    names: Annotated[list[_Name], msgspec.Meta(min_length=1, max_length=_MAX_NAMES)]
    steps: Annotated[list[NonNegativeInt], msgspec.Meta(min_length=2, max_length=1000)]
    states: bytes
    best_reward: bytes

    @property
    def key(self) -> EpisodeKey:
        """The key of the episode inside its run."""
        return (self.suite, self.task_id, self.episode_index)


def make_state_record(result: EpisodeResult) -> StateRecord | None:
    """Return the line of an episode; None if its states are not known."""
    trace, spec = result.states, result.spec
    if trace is None or len(trace.steps) < 2:
        return None
    return StateRecord(
        suite=spec.task.suite,
        task_id=spec.task.task_id,
        episode_index=spec.index,
        names=[name[:200] for name in trace.names],
        steps=[int(step) for step in trace.steps],
        states=trace.states.astype("<f4").tobytes(),
        best_reward=trace.best_reward.astype("<f4").tobytes(),
    )


_decode = msgspec.json.Decoder(StateRecord).decode


def read_states(folder: Path) -> dict[EpisodeKey, StateTrace]:
    """Return the states of a run's episodes; damaged lines are left out."""
    found: dict[EpisodeKey, StateTrace] = {}
    for line in read_jsonl(folder / STATES_FILE, _decode):
        trace = None if line.value is None else _trace(line.value)
        if line.value is not None and trace is not None:
            found[line.value.key] = trace
    return found


def _trace(record: StateRecord) -> StateTrace | None:
    """Return the arrays of a line; None if their sizes do not fit."""
    samples, width = len(record.steps), len(record.names)
    states, best = _floats(record.states), _floats(record.best_reward)
    if states is None or best is None or (states.size, best.size) != (samples * width, samples):
        return None
    return StateTrace(
        names=tuple(record.names),
        steps=np.array(record.steps, np.int64),
        states=states.reshape(samples, width),
        best_reward=best,
    )


def _floats(data: bytes) -> Any:
    return np.frombuffer(data, "<f4") if len(data) % 4 == 0 else None
