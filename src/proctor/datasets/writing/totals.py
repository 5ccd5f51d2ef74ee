"""Compute the statistics of a whole dataset from its files, to continue recording."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from proctor.datasets.format.episode_stats import read_episode_stats
from proctor.datasets.format.episodes import EpisodeMetadata, Episodes
from proctor.datasets.format.info import DEFAULT_FEATURES, Info, data_file
from proctor.datasets.format.tables import read_table
from proctor.datasets.numbers.columns import column_to_array
from proctor.datasets.numbers.quantiles import RunningStatistics
from proctor.datasets.numbers.statistics import (
    FeatureStats,
    Stats,
    array_stats,
    features_with_stats,
    moments,
    with_image_count,
)
from proctor.datasets.writing.episode_rows import frame_times
from proctor.datasets.writing.file_allocation import FileNumber
from proctor.datasets.writing.staging import StagingArea, counts_match_stats
from proctor.errors import DatasetError
from proctor.features import Array


def read_totals(root: Path, info: Info, episodes: Episodes) -> RunningStatistics:
    """Aggregate all episodes of a dataset, with the same result as recording them.

    Image quantiles without stored pixel counts are estimated from those of the episodes. ``proctor
    data stats`` computes them exactly.
    """
    of_episodes = read_episode_stats(root, info)
    cameras = [key for key in info.cameras if not info.is_depth(key)]
    workshop = StagingArea(root)
    known = features_with_stats(info.features)
    levels = {key: workshop.read_levels(key, info.shape(key)[2]) for key in cameras}
    totals = RunningStatistics()
    for rows, numbers in _tables(root, info, episodes):
        of_file: list[Stats] = []
        pixels: list[dict[str, Array | None]] = []
        at = 0
        for row in rows:
            stats = dict(of_episodes[row.index]) if row.index < len(of_episodes) else {}
            for key in stats.keys() & set(info.cameras):
                stats[key] = with_image_count(stats[key], row.length)
            for key, values in numbers.items():
                stats[key] = _of_numbers(key, stats.get(key), values[at : at + row.length])
            of_file.append({key: stats[key] for key in known if key in stats})
            pixels.append(
                {
                    key: _levels_of(levels[key][row.index : row.index + 1], stats[key])
                    for key in cameras
                    if key in stats
                }
            )
            at += row.length
        totals.add_all(of_file, numbers, pixels)
    return totals


def _of_numbers(key: str, old: FeatureStats | None, values: Array) -> FeatureStats:
    """Return the statistics of an episode, with the quantiles of ``old`` if it has them.

    Older datasets have no quantiles. LeRobot's standard deviations may be float32 and are computed
    again, except those of frame numbers and times, which are precise enough.
    """
    if old is None:
        return array_stats(values)
    return old if key in DEFAULT_FEATURES else old | moments(values)


def _levels_of(kept: Array, stats: FeatureStats) -> Array | None:
    found: Array | None = kept[0] if len(kept) and counts_match_stats(kept[0], stats) else None
    return found


def _tables(
    root: Path, info: Info, episodes: Episodes
) -> Iterator[tuple[list[EpisodeMetadata], dict[str, Array]]]:
    """Yield the episodes and numeric features of each data file."""
    keys = [key for key in features_with_stats(info.features) if key not in info.cameras]
    of_files: dict[FileNumber, list[EpisodeMetadata]] = {}
    for row in episodes:
        of_files.setdefault(row.data, []).append(row)
    for place, rows in of_files.items():
        path = data_file(root, info, *place)
        table, n = read_table(path, keys), sum(row.length for row in rows)
        if n > len(table):
            raise DatasetError(
                f"{path} has {len(table)} rows, expected {n}",
                code="dataset.wrong-length",
            )
        if len(table) > n:  # LeRobot abandoned an episode, and the next one reused its numbers
            raise DatasetError(
                f"{path} has {len(table) - n} rows without an episode; run: proctor data stats "
                f"{shlex.quote(str(root))} --in_place",
                code="dataset.extra-rows",
            )
        known = [key for key in keys if key in table.column_names]
        numbers = {key: column_to_array(path, info, key, table[key]) for key in known}
        numbers["timestamp"] = np.concatenate([frame_times(row.length, info.fps) for row in rows])
        yield rows, numbers
