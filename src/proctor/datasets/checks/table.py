"""The unchecked episodes table, read so that a damaged one can still be described."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from proctor.datasets.format.arrow import pa
from proctor.datasets.format.episodes import OLD_EPISODES_FILE, VideoSpans
from proctor.datasets.format.info import Info, episode_files
from proctor.datasets.format.tables import read_lines, read_table, text_column
from proctor.errors import DatasetError

Whole = npt.NDArray[np.int64]
_COLUMNS = (
    ("episode", "episode_index"),
    ("length", "length"),
    ("chunk", "data/chunk_index"),
    ("file", "data/file_index"),
    ("from_index", "dataset_from_index"),
    ("to_index", "dataset_to_index"),
)
_SPAN = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
_PLACE = ("meta/episodes/chunk_index", "meta/episodes/file_index")


@dataclass(frozen=True)
class EpisodeTable:
    """The columns of the episodes table, not yet validated."""

    episode: Whole
    length: Whole
    chunk: Whole
    file: Whole
    from_index: Whole
    to_index: Whole
    tasks: Sequence[tuple[str, ...]]
    spans: dict[str, VideoSpans]
    written_in: Sequence[str]
    """The file that holds the row."""
    says_written_in: Sequence[tuple[Any, Any]] | None
    """Chunk and file that the row states for itself; None if it states none."""

    def __len__(self) -> int:
        return len(self.episode)

    def first(self, n: int) -> EpisodeTable:
        """Return the first ``n`` rows, which are those that readers use."""
        return replace(
            self,
            **{name: getattr(self, name)[:n] for name, _ in _COLUMNS},
            tasks=self.tasks[:n],
            spans={
                key: VideoSpans(span.chunk[:n], span.file[:n], span.from_s[:n], span.to_s[:n])
                for key, span in self.spans.items()
            },
            written_in=self.written_in[:n],
            says_written_in=None if self.says_written_in is None else self.says_written_in[:n],
        )

    def numbers(self, rows: Iterator[int] | Sequence[int] | Whole) -> list[int]:
        """Return the episode numbers of these rows."""
        return [int(self.episode[row]) for row in rows]


def read_episode_table(root: Path, info: Info) -> EpisodeTable:
    """Read all rows, also those beyond ``info.total_episodes``."""
    return _from_lines(root, info) if info.is_v2 else _from_parquet(root, info)


def _from_parquet(root: Path, info: Info) -> EpisodeTable:
    paths = episode_files(root)
    if not paths:
        raise DatasetError(
            f"{root / 'meta/episodes'} has no episodes table", code="dataset.missing-file"
        )
    spans = {key: [f"videos/{key}/{name}" for name in _SPAN] for key in info.video_keys}
    numbers = [*(name for _, name in _COLUMNS), *itertools.chain(*spans.values())]
    tables = [(path, read_table(path, [*numbers, "tasks", *_PLACE])) for path in paths]
    columns = {
        name: np.concatenate([_numbers(path, table, name) for path, table in tables])
        for name in numbers
    }
    return EpisodeTable(
        **{ours: columns[name].astype(np.int64) for ours, name in _COLUMNS},
        tasks=[tasks for path, table in tables for tasks in _task_lists(path, table)],
        spans={
            key: VideoSpans(
                columns[chunk].astype(np.int64), columns[file].astype(np.int64),
                columns[begin].astype(np.float64), columns[end].astype(np.float64),
            )
            for key, (chunk, file, begin, end) in spans.items()
        },
        written_in=[
            path.relative_to(root).as_posix() for path, table in tables for _ in range(len(table))
        ],
        says_written_in=_said_places([table for _, table in tables]),
    )  # fmt: skip


def _numbers(path: Path, table: pa.Table, name: str) -> npt.NDArray[Any]:
    if name not in table.column_names:
        raise DatasetError(f"{path} has no column {name}", code="dataset.missing-column")
    column = table[name]
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if column.null_count or not is_number:
        raise DatasetError(
            f"{path}: column {name} does not have a number in every row", code="dataset.wrong-type"
        )
    found: npt.NDArray[Any] = column.to_numpy()
    return found


def _task_lists(path: Path, table: pa.Table) -> list[tuple[str, ...]]:
    if "tasks" not in table.column_names or not pa.types.is_list(table["tasks"].type):
        raise DatasetError(f"{path} has no list column tasks", code="dataset.missing-column")
    found: list[tuple[str, ...]] = []
    for chunk in table["tasks"].chunks:
        words = text_column(path, chunk.values)
        for start, end in itertools.pairwise(chunk.offsets.to_numpy().tolist()):
            found.append(tuple(str(word) for word in words[start:end]))
    return found


def _said_places(tables: Sequence[pa.Table]) -> list[tuple[Any, Any]] | None:
    if not all(name in table.column_names for table in tables for name in _PLACE):
        return None
    said = [[value for table in tables for value in table[name].to_pylist()] for name in _PLACE]
    return list(zip(*said, strict=True))


def _from_lines(root: Path, info: Info) -> EpisodeTable:
    """Return the table of a v2.x dataset, in which each episode has its own files."""
    path = root / OLD_EPISODES_FILE
    rows = list(read_lines(path))
    for number, row in enumerate(rows, 1):
        whole = all(isinstance(row.get(name), int) for name in ("episode_index", "length"))
        if not whole or not isinstance(row.get("tasks"), list):
            raise DatasetError(
                f"{path}, line {number}: no episode_index, length and tasks",
                code="dataset.malformed-metadata",
            )
    rows.sort(key=lambda row: int(row["episode_index"]))  # lines may have any order
    episode = np.array([row["episode_index"] for row in rows], np.int64)
    length = np.array([row["length"] for row in rows], np.int64)
    ends = np.cumsum(length)
    whole_file = VideoSpans(
        episode // info.chunks_size, episode, np.zeros(len(rows)), length / info.fps
    )
    return EpisodeTable(
        episode=episode,
        length=length,
        chunk=whole_file.chunk,
        file=episode,
        from_index=ends - length,
        to_index=ends,
        tasks=[tuple(str(task) for task in row["tasks"]) for row in rows],
        spans=dict.fromkeys(info.video_keys, whole_file),
        written_in=[OLD_EPISODES_FILE] * len(rows),
        says_written_in=None,
    )
