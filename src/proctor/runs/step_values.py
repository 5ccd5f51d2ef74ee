"""Actions and rewards of a filmed episode, step by step: a JSON file beside its video."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from proctor.features import Array
from proctor.runs.folder import write_run_file
from proctor.runs.journal import video_path
from proctor.system.files import read_regular_file
from proctor.types import EpisodeKey, EpisodeResult

_MAX_BYTES = 64 * 2**20
_Rate = Annotated[float, msgspec.Meta(gt=0, le=1e6)]


@dataclass(frozen=True)
class StepValues:
    """Values of every step of an episode."""

    steps_per_s: _Rate
    """Steps of the episode in one second of its video."""
    actions: list[list[float]]  # [steps, action size]
    rewards: list[float]

    def arrays(self) -> tuple[Array, Array] | None:
        """Return actions [steps, size] and rewards [steps]; None if their sizes do not fit."""
        n = len(self.rewards)
        if not n or len(self.actions) != n or len({len(row) for row in self.actions}) != 1:
            return None
        return np.array(self.actions, np.float64), np.array(self.rewards, np.float64)


def step_values_path(key: EpisodeKey) -> str:
    """Return the path of an episode's values, relative to the run folder."""
    return video_path(key).removesuffix(".mp4") + ".json"


def write_step_values(folder: Path, result: EpisodeResult, steps_per_s: float) -> None:
    """Write the values of a filmed episode beside its video."""
    if result.actions is None or result.rewards is None:
        return
    values = StepValues(
        steps_per_s=steps_per_s,
        actions=[[_short(value) for value in row] for row in result.actions[: result.steps]],
        rewards=[_short(value) for value in result.rewards],
    )
    write_run_file(folder / step_values_path(result.spec.key), msgspec.json.encode(values))


def read_step_values(folder: Path, key: EpisodeKey) -> StepValues | None:
    """Return the values of an episode; None if there are none, or the file is damaged or a link."""
    path = folder / step_values_path(key)
    if path.is_symlink() or not path.is_file():
        return None
    try:
        return msgspec.json.decode(read_regular_file(path, _MAX_BYTES), type=StepValues)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _short(value: float) -> float:
    """Return a float32 with as many digits as a plot shows."""
    return float(f"{value:.5g}")
