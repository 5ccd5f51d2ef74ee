"""Recordings of the fake benchmark, and the columns of their datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from proctor.callbacks.base import Callback
from proctor.config.builder import build
from proctor.config.recording import RecordConfig
from proctor.datasets.format.episodes import read_episodes
from proctor.datasets.format.info_file import read_info
from proctor.evaluation.recording import RecordingResult, prepare, run_recording

NUMBERS = {
    "policy.type": "expert",
    "env.type": "fake",
    "env.n_tasks": 2,
    "env.episode_length": 14,  # some goals are too far
    "record.n_episodes": 2,
    "record.images": False,
    "record.extra": ["environment_state", "next.reward", "next.success"],
    "eval.batch_size": 2,
}


def record(root: Path, *watching: Callback, **flags: Any) -> RecordingResult:
    """Record two small tasks without images, unless flags say otherwise."""
    settings = NUMBERS | {"dataset.root": str(root)}
    settings |= {name.replace("__", "."): value for name, value in flags.items()}
    settings = {name: value for name, value in settings.items() if value is not None}
    prepared, shown = prepare(build(RecordConfig, settings))
    return run_recording(prepared, shown, settings, lambda before, in_dataset: list(watching))


def columns(root: Path) -> dict[str, Any]:
    """Return every column of a dataset, and where its episodes begin."""
    info = read_info(root)
    files = sorted((root / "data").rglob("*.parquet"))
    table = pa.concat_tables([pq.read_table(file) for file in files])
    episodes = read_episodes(root, info)
    assert len(table) == info.total_frames
    told = {name: np.asarray(table[name].to_pylist()) for name in table.column_names}
    return told | {"from": [episodes[i].from_index for i in range(len(episodes))]}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two datasets have the same bits."""
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def episodes_of(root: Path) -> list[dict[str, Any]]:
    """Return the columns of each episode."""
    told = columns(root)
    told.pop("from")
    n = int(told["episode_index"][-1]) + 1
    return [{k: v[told["episode_index"] == i] for k, v in told.items()} for i in range(n)]
