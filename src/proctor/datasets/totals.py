"""The statistics of a whole dataset, counted again from what lies on disk."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from proctor.datasets.columns import as_numbers
from proctor.datasets.entry import times
from proctor.datasets.episode_stats import read_episode_stats
from proctor.datasets.episodes import EpisodeRow, Episodes
from proctor.datasets.info import Info, data_file
from proctor.datasets.spread import Totals
from proctor.datasets.statistics import Stats, counted_features, numbers_stats
from proctor.datasets.tables import read_table
from proctor.datasets.workshop import Workshop, believed
from proctor.errors import DatasetError
from proctor.features import Array


def read_totals(root: Path, info: Info, episodes: Episodes) -> Totals:
    """Count every episode of a dataset: the same numbers as if it had just been recorded.

    Of pictures whose levels nobody kept, quantiles are guessed from the episodes'; ``proctor data
    stats`` decodes them.

    Raises:
        DatasetError: a table is missing, cut, or shorter than the episodes say.
    """
    of_episodes = read_episode_stats(root, info)
    cameras = [key for key in info.cameras if not info.is_depth(key)]
    workshop = Workshop(root)
    levels = {key: workshop.read_levels(key, info.shape(key)[2]) for key in cameras}
    totals = Totals()
    for row, numbers in _numbers(root, info, episodes):
        stats: Stats = dict(of_episodes[row.index]) if row.index < len(of_episodes) else {}
        for key in numbers.keys() - stats.keys():  # older datasets have none, edited ones not all
            stats[key] = numbers_stats(numbers[key])
        stats = {key: stats[key] for key in counted_features(info.features) if key in stats}
        pixels: dict[str, Array | None] = {}
        for key in (key for key in cameras if key in stats):
            kept = levels[key][row.index : row.index + 1]
            sure = len(kept) == 1 and believed(kept[0], stats[key])
            pixels[key] = kept[0] if sure else None
        totals.add(stats, numbers, pixels)
    return totals


def _numbers(
    root: Path, info: Info, episodes: Episodes
) -> Iterator[tuple[EpisodeRow, dict[str, Array]]]:
    """Yield each episode with the values of its features that are numbers."""
    keys = [key for key in counted_features(info.features) if key not in info.cameras]
    for place, rows in groupby(episodes, key=lambda row: row.data):
        path = data_file(root, info, *place)
        table, at = read_table(path, keys), 0
        columns = {
            key: as_numbers(path, info, key, table[key])
            for key in keys
            if key in table.column_names
        }
        for row in rows:
            if at + row.length > len(table):
                raise DatasetError(
                    f"{path} has {len(table)} frames, episode {row.index} needs more"
                )
            numbers = {key: values[at : at + row.length] for key, values in columns.items()}
            numbers |= {"timestamp": times(row.length, info.fps)}
            yield row, numbers
            at += row.length
