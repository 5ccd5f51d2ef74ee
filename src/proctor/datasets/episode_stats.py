"""The statistics of each episode, which its row in the table of episodes carries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from proctor.datasets.info import Info, episode_files
from proctor.datasets.tables import Stats, as_stats, read_lines, read_table

OLD_STATS_FILE = "meta/episodes_stats.jsonl"


def stats_columns(stats_per_episode: Sequence[Stats]) -> dict[str, pa.Array]:
    """Return the columns ``stats/<feature>/<name>`` of a table of episodes."""
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
    """Return the statistics of every episode; empty where the dataset has none (v2.0).

    Raises:
        DatasetError: a file is missing, cut or holds something else.
    """
    if info.is_v2:
        path = root / OLD_STATS_FILE
        if not path.exists():
            return []
        found = {str(line.get("episode_index")): line.get("stats") for line in read_lines(path)}
        return [as_stats(path, found.get(str(i))) for i in range(info.total_episodes)]
    stats: list[Stats] = []
    for path in episode_files(root):
        if len(stats) >= info.total_episodes:
            break
        table = read_table(path)
        names = [name for name in table.column_names if name.startswith("stats/")]
        if not names:
            return []
        values = {name: table[name].to_pylist() for name in names}
        for row in range(len(table)):
            plain: dict[str, dict[str, Any]] = {}
            for name in names:
                key, _, which = name.removeprefix("stats/").rpartition("/")
                if values[name][row] is not None:
                    plain.setdefault(key, {})[which] = values[name][row]
            stats.append(as_stats(path, plain))
    return stats[: info.total_episodes]
