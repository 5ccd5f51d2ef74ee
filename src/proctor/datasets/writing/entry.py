"""A take on its way into a dataset: numbered, and as the rows that go into its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from proctor.datasets.format.episodes import EpisodeRow, Span
from proctor.datasets.format.info import Info
from proctor.datasets.format.schema import arrow_schema
from proctor.datasets.numbers.arrays import rows_as_arrow
from proctor.datasets.numbers.columns import as_numbers
from proctor.datasets.numbers.statistics import Stats, counted_features, numbers_stats
from proctor.datasets.writing.frame import described, own_features
from proctor.datasets.writing.places import Places
from proctor.datasets.writing.take import TASK, Take
from proctor.errors import DatasetError
from proctor.features import Array


@dataclass(frozen=True)
class Entry:
    """One episode, as a dataset holds it."""

    row: EpisodeRow
    table: pa.Table
    stats: Stats
    numbers: dict[str, Array]
    """The values of its features that are numbers, [frames, ...]."""
    pixels: dict[str, Array]
    """The counts of levels of each camera, [C, 256]."""
    tasks: tuple[str, ...]
    """All tasks of the dataset, with those that this episode was the first to have."""


def entries_of(
    takes: Sequence[Take], info: Info, tasks: tuple[str, ...], places: Places
) -> list[Entry]:
    """Return the entries of ``takes`` as the next episodes of a dataset, in this order.

    Raises:
        DatasetError: one was recorded with other features.
    """
    entries: list[Entry] = []
    for take in takes:
        entry = _entry_of(take, info, tasks, places)
        entries.append(entry)
        info, tasks = grown(info, entry), entry.tasks
    return entries


def numbers_of(entries: Sequence[Entry]) -> dict[str, Array]:
    """Return the numbers of entries, those of one below those of the one before."""
    return {
        key: np.concatenate([entry.numbers[key] for entry in entries]) for key in entries[0].numbers
    }


def grown(info: Info, last: Entry) -> Info:
    """Return what a dataset says of itself once ``last`` is its last episode."""
    n = last.row.index + 1
    return replace(
        info,
        total_episodes=n,
        total_frames=last.row.to_index,
        total_tasks=len(last.tasks),
        splits=info.splits | {"train": f"0:{n}"},
    )


def _entry_of(take: Take, info: Info, tasks: Sequence[str], places: Places) -> Entry:
    frames = take.table()
    _refuse_other_features(take, frames, info)
    all_tasks = tuple(dict.fromkeys([*tasks, *take.tasks]))
    number = {task: i for i, task in enumerate(all_tasks)}
    first, n = info.total_frames, take.length
    counted: dict[str, Array] = {
        "timestamp": times(n, info.fps),
        "frame_index": np.arange(n),
        "episode_index": np.full(n, info.total_episodes),
        "index": np.arange(first, first + n),
        "task_index": np.array([number[task] for task in frames[TASK].to_pylist()]),
    }
    schema = arrow_schema(info)
    columns = [
        rows_as_arrow(counted[field.name].astype(info.dtype(field.name)), field.type)
        if field.name in counted
        else frames[field.name]
        for field in schema
    ]
    stats, pixels = take.stats()
    stats |= {key: numbers_stats(values) for key, values in counted.items()}
    numbers = {
        key: as_numbers(take.folder, info, key, frames[key])
        for key in counted_features(info.features)
        if key not in info.cameras and key not in counted
    }
    nth = info.total_episodes - places.episode
    films = {key: found[nth] for key, found in places.videos.items()}
    return Entry(
        row=EpisodeRow(
            index=info.total_episodes,
            tasks=take.tasks,
            length=n,
            data=places.data,
            from_index=first,
            to_index=first + n,
            videos={key: Span(*at, 0.0, n / info.fps) for key, at in films.items()},
        ),
        table=pa.table(columns, schema=schema).combine_chunks(),
        stats={key: stats[key] for key in counted_features(info.features)},
        numbers=numbers | counted,
        pixels=pixels,
        tasks=all_tasks,
    )


def times(n_frames: int, fps: int) -> Array:
    """Return when each frame of an episode was, in seconds, before float32 rounds it."""
    found: Array = np.arange(n_frames) / fps
    return found


def _refuse_other_features(take: Take, frames: pa.Table, info: Info) -> None:
    expected = {field.name: field.type for field in arrow_schema(info)}
    for key in own_features(info):
        if key in info.video_keys:
            same = take.video(key).is_file()
        else:
            same = key in frames.schema.names and frames.schema.field(key).type == expected[key]
        if not same:
            raise DatasetError(
                f"{take.folder} was recorded with other features: the dataset's {key} is "
                f"{described(info, key)}"
            )
