"""The episodes table: the length, tasks and file locations of every episode.

Only the first ``total_episodes`` rows count; a killed recorder may leave rows after them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.format.arrow import pa
from proctor.datasets.format.episode_stats import (
    range_columns,
    read_episode_stats,
    rows_of,
    stats_columns,
)
from proctor.datasets.format.info import Info, episode_files, episodes_file
from proctor.datasets.format.tables import Stats, read_lines, read_table, text_column, write_table
from proctor.errors import DatasetError, strip_control_codes
from proctor.features import Array

__all__ = [
    "EpisodeMetadata",
    "Episodes",
    "VideoSpan",
    "VideoSpans",
    "read_episode_stats",
    "read_episodes",
    "write_episodes",
]

OLD_EPISODES_FILE = "meta/episodes.jsonl"
START_COLUMN = "proctor/start"
"""Where each episode started, as JSON (``proctor.starts``). LeRobot ignores the column."""
_PLAIN = (
    ("index", "episode_index"),
    ("length", "length"),
    ("data_chunk", "data/chunk_index"),
    ("data_file", "data/file_index"),
    ("from_index", "dataset_from_index"),
    ("to_index", "dataset_to_index"),
)
"""Fields of ``Episodes`` and their columns."""
_SPAN = (
    ("chunk", "chunk_index", pa.int64()),
    ("file", "file_index", pa.int64()),
    ("from_s", "from_timestamp", pa.float64()),
    ("to_s", "to_timestamp", pa.float64()),
)
_MOST = 2**40


@dataclass(frozen=True)
class VideoSpan:
    """The location of an episode in a camera's videos: a file and its seconds [from, to)."""

    chunk: int
    file: int
    from_s: float
    to_s: float


@dataclass(frozen=True)
class EpisodeMetadata:
    """The metadata of one episode; its frames are rows [from_index, to_index) of the dataset."""

    index: int
    tasks: tuple[str, ...]
    length: int
    data: tuple[int, int]
    """Chunk and file number of its data file; in v2.x the file number is the episode's number."""
    from_index: int
    to_index: int
    videos: dict[str, VideoSpan]
    start: str | None = None
    """Its measured start (``START_COLUMN``); None: not recorded."""


@dataclass(frozen=True)
class VideoSpans:
    """The video spans of all episodes for one camera, as columns."""

    chunk: Array
    file: Array
    from_s: Array
    to_s: Array


@dataclass(frozen=True)
class Episodes:
    """The metadata of all episodes, as columns of int64 [n]; ``episodes[i]`` is one row."""

    index: Array
    length: Array
    data_chunk: Array
    data_file: Array
    from_index: Array
    to_index: Array
    tasks: Sequence[tuple[str, ...]]
    videos: dict[str, VideoSpans]
    ranges: dict[str, Array] = field(default_factory=dict)
    """Column name -> minimum or maximum of each episode's actions and states, if stored."""
    starts: Sequence[str | None] | None = None
    """The measured start of each episode (``START_COLUMN``); None: the table has none."""

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> EpisodeMetadata:
        return EpisodeMetadata(
            index=int(self.index[i]),
            tasks=self.tasks[i],
            length=int(self.length[i]),
            data=(int(self.data_chunk[i]), int(self.data_file[i])),
            from_index=int(self.from_index[i]),
            to_index=int(self.to_index[i]),
            videos={
                key: VideoSpan(
                    int(s.chunk[i]), int(s.file[i]), float(s.from_s[i]), float(s.to_s[i])
                )
                for key, s in self.videos.items()
            },
            start=None if self.starts is None else self.starts[i],
        )

    def __iter__(self) -> Iterator[EpisodeMetadata]:
        return (self[i] for i in range(len(self)))


def read_episodes(root: Path, info: Info) -> Episodes:
    """Read the metadata of the dataset's episodes."""
    return _read_v2(root, info) if info.is_v2 else _read_v3(root, info)


def _read_v3(root: Path, info: Info) -> Episodes:
    names = [name for _, name in _PLAIN]
    names += [f"videos/{key}/{name}" for key in info.video_keys for _, name, _ in _SPAN]
    table = _rows(root, info, ["tasks", START_COLUMN, *names, *range_columns()])
    columns = {name: _whole(root, table, name) for name in names if not name.endswith("_timestamp")}
    for name in set(names) - set(columns):
        columns[name] = _seconds(root, table, name)
    tasks: list[tuple[str, ...]] = [()] * len(table)
    if "tasks" in table.column_names and pa.types.is_list(table["tasks"].type):
        tasks = _task_lists(root, table["tasks"])
    return _counted(
        root / "meta/episodes",
        Episodes(
            **{ours: columns[name] for ours, name in _PLAIN},
            tasks=tasks,
            videos={
                key: VideoSpans(
                    **{ours: columns[f"videos/{key}/{name}"] for ours, name, _ in _SPAN}
                )
                for key in info.video_keys
            },
            ranges=_ranges(table),
            starts=_starts(table),
        ),
    )


def _rows(root: Path, info: Info, names: Sequence[str]) -> pa.Table:
    """Return the first ``total_episodes`` rows; files after them are not read."""
    tables: list[pa.Table] = []
    rows = 0
    for path in episode_files(root):
        if rows >= info.total_episodes:
            break
        tables.append(_with_sound_starts(read_table(path, names)))
        rows += len(tables[-1])
    if rows < info.total_episodes:
        raise DatasetError(
            f"{root / 'meta/episodes'} has {rows} of the {info.total_episodes} episodes in "
            "meta/info.json",
            code="dataset.missing-episodes",
        )
    if not tables:
        columns = [name for name in names if name not in ("tasks", START_COLUMN, *range_columns())]
        return pa.table({name: pa.array([], pa.int64()) for name in columns})
    try:
        return pa.concat_tables(tables, promote_options="permissive")[: info.total_episodes]
    except pa.ArrowException as error:
        reason = strip_control_codes(str(error), 200)
        raise DatasetError(
            f"{root / 'meta/episodes'}: its files have different columns: {reason}",
            code="dataset.wrong-type",
        ) from None


def _ranges(table: pa.Table) -> dict[str, Array]:
    columns = [name for name in range_columns() if name in table.column_names]
    found = {name: rows_of(table[name]) for name in columns}
    return {name: rows for name, rows in found.items() if isinstance(rows, np.ndarray)}


def _with_sound_starts(table: pa.Table) -> pa.Table:
    """Replace a damaged column of starts by empty texts, which are no starts."""
    if START_COLUMN not in table.column_names:
        return table
    try:
        column = table[START_COLUMN].cast(pa.string())
        column.validate(full=True)
    except pa.ArrowException:
        column = pa.array([""] * len(table), pa.string())
    return table.set_column(table.column_names.index(START_COLUMN), START_COLUMN, column)


def _starts(table: pa.Table) -> list[str | None] | None:
    return table[START_COLUMN].to_pylist() if START_COLUMN in table.column_names else None


def _task_lists(root: Path, column: pa.ChunkedArray) -> list[tuple[str, ...]]:
    """Return the tasks of each episode; equal tuples are shared objects."""
    lists: list[tuple[str, ...]] = []
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    for chunk in column.chunks:
        words = text_column(root / "meta/episodes", chunk.values)
        starts = chunk.offsets.to_numpy().tolist()
        for start, end in itertools.pairwise(starts):
            found = tuple(str(word) for word in words[start:end])
            lists.append(shared.setdefault(found, found))
    return lists


def _whole(root: Path, table: pa.Table, name: str) -> Array:
    """Return a column of non-negative integers."""
    values = _numbers(root, table, name, np.int64, pa.types.is_integer)
    if len(values) and not (values.min() >= 0 and values.max() <= _MOST):
        raise DatasetError(
            f"{root / 'meta/episodes'}: {name} has numbers out of range",
            code="dataset.out-of-range",
        )
    return values


def _seconds(root: Path, table: pa.Table, name: str) -> Array:
    values = _numbers(root, table, name, np.float64, pa.types.is_primitive)
    if not np.isfinite(values).all() or (values < 0).any() or (values > 1e9).any():
        raise DatasetError(
            f"{root / 'meta/episodes'}: {name} has times out of range",
            code="dataset.out-of-range",
        )
    return values


def _numbers(
    root: Path, table: pa.Table, name: str, dtype: type[Any], is_right: Callable[[Any], bool]
) -> Array:
    where = root / "meta/episodes"
    if name not in table.column_names:
        raise DatasetError(f"{where} has no column {name}", code="dataset.missing-column")
    column = table[name]
    if column.null_count or not is_right(column.type):
        raise DatasetError(f"{where}: {name} is not a column of numbers", code="dataset.wrong-type")
    return np.asarray(column.to_numpy()).astype(dtype)


def _read_v2(root: Path, info: Info) -> Episodes:
    path = root / OLD_EPISODES_FILE
    lines = sorted(
        (
            (
                _count(path, line.get("episode_index")),
                _count(path, line.get("length")),
                _texts(path, line.get("tasks")),
            )
            for line in read_lines(path)
        ),
        key=lambda line: line[0],
    )[: info.total_episodes]
    if len(lines) < info.total_episodes:
        raise DatasetError(
            f"{path} has {len(lines)} of the {info.total_episodes} episodes in meta/info.json",
            code="dataset.missing-episodes",
        )
    index = np.array([line[0] for line in lines], np.int64)
    length = np.array([line[1] for line in lines], np.int64)
    ends = np.cumsum(length)
    spans = VideoSpans(index // info.chunks_size, index, np.zeros(len(index)), length / info.fps)
    return _counted(
        path,
        Episodes(
            index=index,
            length=length,
            data_chunk=spans.chunk,
            data_file=index,
            from_index=ends - length,
            to_index=ends,
            tasks=[line[2] for line in lines],
            videos=dict.fromkeys(info.video_keys, spans),
        ),
    )


def _count(path: Path, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
        raise DatasetError(
            f"{path}: {strip_control_codes(repr(value), 60)} is not an episode number",
            code="dataset.malformed-metadata",
        )
    return value


def _texts(path: Path, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise DatasetError(
            f"{path}: tasks are {strip_control_codes(repr(value), 60)}, expected a list of strings",
            code="dataset.malformed-metadata",
        )
    return tuple(value)


def _counted(where: Path, episodes: Episodes) -> Episodes:
    wrong = np.flatnonzero(episodes.index != np.arange(len(episodes)))
    if len(wrong):
        row, found = int(wrong[0]), int(episodes.index[wrong[0]])
        raise DatasetError(
            f"{where}: found episode {found} in the row of episode {row}",
            code="dataset.episode-order",
        )
    return episodes


def write_episodes(
    root: Path,
    rows: Sequence[EpisodeMetadata],
    stats_per_episode: Sequence[Stats],
    chunk: int,
    file: int,
    *,
    starts: bool = False,
) -> None:
    """Write one file of the episodes table atomically; ``starts``: with ``START_COLUMN``."""
    columns: dict[str, pa.Array] = {
        "episode_index": pa.array([row.index for row in rows], pa.int64()),
        "tasks": pa.array([list(row.tasks) for row in rows], pa.list_(pa.string())),
        "length": pa.array([row.length for row in rows], pa.int64()),
        "data/chunk_index": pa.array([row.data[0] for row in rows], pa.int64()),
        "data/file_index": pa.array([row.data[1] for row in rows], pa.int64()),
        "dataset_from_index": pa.array([row.from_index for row in rows], pa.int64()),
        "dataset_to_index": pa.array([row.to_index for row in rows], pa.int64()),
    }
    for key in rows[0].videos if rows else ():
        for ours, name, kind in _SPAN:
            values = [getattr(row.videos[key], ours) for row in rows]
            columns[f"videos/{key}/{name}"] = pa.array(values, kind)
    if starts:
        columns[START_COLUMN] = pa.array([row.start for row in rows], pa.string())
    columns |= stats_columns(stats_per_episode)
    columns["meta/episodes/chunk_index"] = pa.array([chunk] * len(rows), pa.int64())
    columns["meta/episodes/file_index"] = pa.array([file] * len(rows), pa.int64())
    write_table(episodes_file(root, chunk, file), pa.table(columns))
