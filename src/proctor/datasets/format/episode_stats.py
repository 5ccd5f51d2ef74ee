"""The statistics of each episode, stored in its row of the episodes table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.format.arrow import pa
from proctor.datasets.format.info import Info, episode_files
from proctor.datasets.format.tables import (
    UNREADABLE,
    Stats,
    as_stats,
    damaged_table_error,
    read_lines,
    read_table,
)
from proctor.errors import DatasetError
from proctor.features import ACTION, STATE

OLD_STATS_FILE = "meta/episodes_stats.jsonl"
_NEEDED = {"min", "max", "mean", "std", "count"}


def stats_columns(stats_per_episode: Sequence[Stats]) -> dict[str, pa.Array]:
    """Return the columns ``stats/<feature>/<name>`` of an episodes table."""
    columns: dict[str, pa.Array] = {}
    kinds = {
        (key, name): np.asarray(value)
        for stats in stats_per_episode
        for key, entry in stats.items()
        for name, value in entry.items()
    }
    for (key, name), like in kinds.items():
        kind = pa.int64() if name == "count" else pa.float64()
        for _ in range(max(1, like.ndim)):
            kind = pa.list_(kind)
        values = [stats.get(key, {}).get(name) for stats in stats_per_episode]
        lists = [None if value is None else np.atleast_1d(value).tolist() for value in values]
        columns[f"stats/{key}/{name}"] = pa.array(lists, kind)
    return columns


def read_episode_stats(root: Path, info: Info) -> list[Stats]:
    """Return the statistics of every episode; empty if the dataset has none (v2.0).

    The statistics of a feature are complete and have the same shapes in all episodes.
    """
    if info.is_v2:
        path = root / OLD_STATS_FILE
        if not path.exists():
            return []
        found = {str(line.get("episode_index")): line.get("stats") for line in read_lines(path)}
        stats = [as_stats(path, found.get(str(i))) for i in range(info.total_episodes)]
        return _alike(path, stats)
    stats = []
    for path in episode_files(root):
        if len(stats) >= info.total_episodes:
            break
        found_here = _read_rows(path)
        if not found_here:
            return []
        stats += found_here
    return _alike(root / "meta/episodes", stats[: info.total_episodes])


def _read_rows(path: Path) -> list[Stats]:
    """Return the statistics of the episodes in one file; empty if it has none."""
    table = read_table(path)
    names = [name for name in table.column_names if name.startswith("stats/")]
    try:
        values = {name: rows_of(table[name]) for name in names}
    except UNREADABLE as error:
        raise damaged_table_error(path, error) from None
    stats = []
    for row in range(len(table) if names else 0):
        plain: dict[str, dict[str, Any]] = {}
        for name in names:
            key, _, which = name.removeprefix("stats/").rpartition("/")
            if values[name][row] is not None:
                plain.setdefault(key, {})[which] = values[name][row]
        stats.append(as_stats(path, plain))
    return stats


def range_columns() -> list[str]:
    """Return the columns with each episode's exact minimum and maximum of actions and states."""
    return [f"stats/{key}/{name}" for key in (ACTION, STATE) for name in ("min", "max")]


def rows_of(column: pa.ChunkedArray) -> Any:
    """Return the rows of a list column: as one array if all rows have the same shape."""
    array, shape = column.combine_chunks(), [len(column)]
    while pa.types.is_list(array.type) and not array.null_count:
        lengths = np.diff(array.offsets.to_numpy())
        if len(np.unique(lengths)) != 1:
            break
        shape.append(int(lengths[0]))
        array = array.flatten()
    if pa.types.is_primitive(array.type) and not array.null_count:
        return array.to_numpy(zero_copy_only=False).reshape(shape)
    return column.to_pylist()


def _alike(path: Path, stats: list[Stats]) -> list[Stats]:
    """Return ``stats`` after checking that they are complete and can be aggregated."""
    first: dict[tuple[str, str], tuple[int, ...]] = {}
    for episode, entries in enumerate(stats):
        for key, entry in entries.items():
            same = all(v.shape == first.setdefault((key, n), v.shape) for n, v in entry.items())
            if not same or not entry.keys() >= _NEEDED:  # older files have no quantiles
                raise DatasetError(
                    f"{path}: the statistics of {key} in episode {episode} are incomplete, or "
                    "their shape differs from other episodes",
                    code="dataset.malformed-stats",
                )
    return stats
