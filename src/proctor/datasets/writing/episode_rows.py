"""Turn staged episodes into numbered rows of a dataset's tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from proctor.datasets.format.arrow import pa
from proctor.datasets.format.episodes import EpisodeMetadata, VideoSpan
from proctor.datasets.format.info import Info
from proctor.datasets.format.schema import arrow_schema
from proctor.datasets.numbers.arrays import rows_as_arrow
from proctor.datasets.numbers.columns import column_to_array
from proctor.datasets.numbers.statistics import Stats, array_stats, features_with_stats
from proctor.datasets.writing.file_allocation import FileAllocation
from proctor.datasets.writing.frame import describe_feature, own_features
from proctor.datasets.writing.staged_episode import TASK, StagedEpisode
from proctor.errors import DatasetError
from proctor.features import Array


@dataclass(frozen=True)
class EpisodeRows:
    """The table rows, statistics and metadata of one new episode."""

    row: EpisodeMetadata
    table: pa.Table
    stats: Stats
    numbers: dict[str, Array]
    """Its numeric features, [frames, ...]."""
    pixels: dict[str, Array]
    """Pixel counts of each camera, [C, 256]."""
    tasks: tuple[str, ...]
    """All tasks of the dataset, including new ones of this episode."""


def rows_of_episodes(
    takes: Sequence[StagedEpisode], info: Info, tasks: tuple[str, ...], places: FileAllocation
) -> Iterator[EpisodeRows]:
    """Yield the rows of ``takes`` as the next episodes of a dataset, in this order."""
    schema = arrow_schema(info)
    for take in takes:
        entry = _entry_of(take, info, schema, tasks, places)
        yield entry
        info, tasks = grown_info(info, entry), entry.tasks


def stack_numbers(entries: Sequence[EpisodeRows]) -> dict[str, Array]:
    """Return the numeric features of all entries, concatenated along the frame axis."""
    return {
        key: np.concatenate([entry.numbers[key] for entry in entries]) for key in entries[0].numbers
    }


def grown_info(info: Info, last: EpisodeRows) -> Info:
    """Return the dataset's info with totals that include the new episode ``last``."""
    n = last.row.index + 1
    return replace(
        info,
        total_episodes=n,
        total_frames=last.row.to_index,
        total_tasks=len(last.tasks),
        splits=info.splits | {"train": f"0:{n}"},
    )


def _entry_of(
    take: StagedEpisode,
    info: Info,
    schema: pa.Schema,
    tasks: Sequence[str],
    places: FileAllocation,
) -> EpisodeRows:
    frames = take.table()
    all_tasks = tuple(dict.fromkeys([*tasks, *take.tasks]))
    number = {task: i for i, task in enumerate(all_tasks)}
    first, n = info.total_frames, take.length
    counted: dict[str, Array] = {
        "timestamp": frame_times(n, info.fps),
        "frame_index": np.arange(n),
        "episode_index": np.full(n, info.total_episodes),
        "index": np.arange(first, first + n),
        "task_index": np.array([number[task] for task in frames[TASK].to_pylist()]),
    }
    columns = [
        rows_as_arrow(counted[field.name].astype(info.dtype(field.name)), field.type)
        if field.name in counted
        else frames[field.name]
        for field in schema
    ]
    stats, pixels = take.stats()
    stats |= {key: array_stats(values) for key, values in counted.items()}
    numbers = {
        key: column_to_array(take.folder, info, key, frames[key])
        for key in features_with_stats(info.features)
        if key not in info.cameras and key not in counted
    }
    nth = info.total_episodes - places.episode
    films = {key: found[nth] for key, found in places.videos.items()}
    return EpisodeRows(
        row=EpisodeMetadata(
            index=info.total_episodes,
            tasks=take.tasks,
            length=n,
            data=places.data[nth],
            from_index=first,
            to_index=first + n,
            videos={key: VideoSpan(*at, 0.0, n / info.fps) for key, at in films.items()},
            start=take.start,
        ),
        table=pa.table(columns, schema=schema),
        stats={key: stats[key] for key in features_with_stats(info.features)},
        numbers=numbers | counted,
        pixels=pixels,
        tasks=all_tasks,
    )


def frame_times(n_frames: int, fps: int) -> Array:
    """Return the timestamp of each frame in seconds, before rounding to float32."""
    found: Array = np.arange(n_frames) / fps
    return found


def refuse_other_features(takes: Sequence[StagedEpisode], info: Info) -> None:
    """Refuse staged episodes that do not fit the dataset."""
    schema = arrow_schema(info)
    expected = {key: schema.field(key).type for key in own_features(info) if key in schema.names}
    for take in takes:
        frames = take.table().schema
        found = {name: frames.field(name).type for name in frames.names}
        for key in own_features(info):
            same = (
                take.video(key).is_file()
                if key in info.video_keys
                else found.get(key) == expected[key]
            )
            if not same:
                raise DatasetError(
                    f"{take.folder} was recorded with different features: the dataset's {key} is "
                    f"{describe_feature(info, key)}",
                    code="dataset.wrong-features",
                )
