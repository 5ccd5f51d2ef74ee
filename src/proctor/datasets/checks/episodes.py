"""Check the episodes table, the tasks, and the totals of info.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.checks.findings import (
    DatasetFinding,
    FindingLevel,
    RepairCommands,
    episodes_text,
)
from proctor.datasets.checks.table import EpisodeTable
from proctor.datasets.checks.uncounted import UncountedEpisodes
from proctor.datasets.format.episodes import OLD_EPISODES_FILE
from proctor.datasets.format.info import EPISODES_PATH, INFO_FILE, Info, episode_files
from proctor.datasets.format.tables import open_table, read_lines, read_table, text_column
from proctor.datasets.format.tasks import OLD_TASKS_FILE, TASKS_FILE
from proctor.errors import DatasetError, strip_control_codes

_INDEX_NAMES = ("task", "__index_level_0__")
"""Names of pandas' index column; the second is used for an unnamed index."""


@dataclass(frozen=True)
class TaskTable:
    """The tasks table, in the order of its rows."""

    names: list[str]
    indices: list[int]
    is_index: bool
    """Whether the names are pandas' index; otherwise LeRobot returns row numbers."""

    @property
    def in_order(self) -> bool:
        """Whether row i is task i, as LeRobot assumes."""
        return self.indices == list(range(len(self.indices)))

    def ordered(self) -> list[str]:
        """Return the tasks by their numbers."""
        if sorted(self.indices) != list(range(len(self.indices))):
            raise DatasetError(
                "tasks are not numbered 0, 1, 2 ...: only the dataset's author can repair them",
                code="dataset.task-numbering",
            )
        return [name for _, name in sorted(zip(self.indices, self.names, strict=True))]


def read_task_table(root: Path, info: Info) -> TaskTable:
    """Read the tasks table as it is on the disk."""
    names: list[Any]
    indices: list[Any]
    if info.is_v2:
        rows = list(read_lines(root / OLD_TASKS_FILE))
        names, indices = ([row.get(name) for row in rows] for name in ("task", "task_index"))
        is_index = True
    else:
        path = root / TASKS_FILE
        table = read_table(path)
        column = next((name for name in _INDEX_NAMES if name in table.column_names), None)
        if column is None or "task_index" not in table.column_names:
            raise DatasetError(
                f"{path} has no columns task and task_index", code="dataset.missing-column"
            )
        names = [text for chunk in table[column].chunks for text in text_column(path, chunk)]
        indices = table["task_index"].to_pylist()
        is_index = column in _pandas_index(path)
    if not all(isinstance(index, int) for index in indices) or not all(
        isinstance(name, str) for name in names
    ):
        where = root / (OLD_TASKS_FILE if info.is_v2 else TASKS_FILE)
        raise DatasetError(
            f"{where} has rows without a task or a task_index", code="dataset.incomplete-tasks"
        )
    return TaskTable(names, indices, is_index)


def _pandas_index(path: Path) -> list[str]:
    said = (open_table(path).schema_arrow.metadata or {}).get(b"pandas")
    try:
        columns = json.loads(said)["index_columns"] if said else []
        return [column for column in columns if isinstance(column, str)]
    except (ValueError, KeyError, TypeError):
        return []


def is_new(root: Path, info: Info) -> bool:
    """Tell whether a dataset has no episodes yet, and so no tables."""
    tables = [root / OLD_EPISODES_FILE] if info.is_v2 else episode_files(root)
    return info.total_episodes == 0 and not any(path.exists() for path in tables)


def no_episodes(mends: RepairCommands) -> DatasetFinding:
    """Return the finding for a dataset whose recording ended before its first episode."""
    what = "there are no episodes yet: the recording was stopped, or kept none"
    return DatasetFinding(FindingLevel.WARNING, "episodes.none", what, INFO_FILE, mends.resume())


def check_tasks(info: Info, tasks: TaskTable, mends: RepairCommands) -> Iterator[DatasetFinding]:
    """Check that LeRobot would find the right task for every frame."""
    where = OLD_TASKS_FILE if info.is_v2 else TASKS_FILE
    error = FindingLevel.ERROR
    if not tasks.is_index:
        what = "pandas is not told that task is the index: LeRobot would return numbers for tasks"
        yield DatasetFinding(error, "tasks.index", what, where, mends.check())
    if sorted(tasks.indices) != list(range(len(tasks.indices))):
        what = f"task_index is not 0 to {len(tasks.indices) - 1}, each once"
        yield DatasetFinding(error, "tasks.numbers", what, where)
    elif not tasks.in_order and not info.is_v2:
        what = "rows are not in the order of task_index, by which LeRobot looks tasks up"
        yield DatasetFinding(error, "tasks.order", what, where, mends.check())
    if len(set(tasks.names)) < len(tasks.names):
        twice = next(name for name in tasks.names if tasks.names.count(name) > 1)
        what = f"task {strip_control_codes(twice, 80)!r} is there more than once"
        yield DatasetFinding(FindingLevel.WARNING, "tasks.twice", what, where, mends.rewritten())


def check_totals(
    info: Info,
    table: EpisodeTable,
    uncounted: UncountedEpisodes,
    tasks: TaskTable | None,
    mends: RepairCommands,
) -> Iterator[DatasetFinding]:
    """Check the totals of info.json against the tables; ``table`` has all stored rows."""
    counted = table.first(info.total_episodes)
    if len(table) < info.total_episodes:
        yield _total("total_episodes", info.total_episodes, len(table), mends)
    yield from _uncounted(info, table, uncounted, mends)
    lengths_hold = (counted.to_index - counted.from_index == counted.length).all()
    frames = int(counted.length.sum())
    if lengths_hold and frames != info.total_frames and not uncounted.complete:
        yield _total("total_frames", info.total_frames, frames, mends)
    if tasks is not None and len(tasks.names) != info.total_tasks:
        yield _total("total_tasks", info.total_tasks, len(tasks.names), mends)


def _uncounted(
    info: Info, table: EpisodeTable, uncounted: UncountedEpisodes, mends: RepairCommands
) -> Iterator[DatasetFinding]:
    begin = f"more episodes than info.json counts ({info.total_episodes}): readers leave them out"
    row = info.total_episodes
    if complete := uncounted.complete:
        where = f"{table.written_in[row]}, {episodes_text(complete)}"
        what = f"{len(complete)} {begin}"
        yield DatasetFinding(FindingLevel.WARNING, "episodes.beyond", what, where, mends.check())
    row += len(complete)
    if incomplete := uncounted.incomplete:
        where = f"{table.written_in[row]}, {episodes_text(incomplete)}"
        what = f"{len(incomplete)} {begin}. They are incomplete: {uncounted.reason}"
        mend = mends.rewritten() if row else mends.resume()
        yield DatasetFinding(FindingLevel.WARNING, "episodes.beyond", what, where, mend)


def _total(name: str, said: int, found: int, mends: RepairCommands) -> DatasetFinding:
    what = f"{name} is {said}, the tables have {found}"
    return DatasetFinding(FindingLevel.ERROR, "info.totals", what, INFO_FILE, mends.check())


def check_episodes(
    table: EpisodeTable, tasks: TaskTable | None, mends: RepairCommands
) -> Iterator[DatasetFinding]:
    """Check the rows of the episodes table against each other and against the tasks."""
    yield from _numbering(table)
    if empty := table.numbers(np.flatnonzero(table.length <= 0)):
        yield _wrong(table, "episodes.empty", "no frames", empty)
    span = table.to_index - table.from_index
    if wrong := table.numbers(np.flatnonzero(span != table.length)):
        what = "dataset_to_index - dataset_from_index is not the length"
        yield _wrong(table, "episodes.length", what, wrong)
    yield from _gaps(table, mends)
    if tasks is not None:
        yield from _task_names(table, set(tasks.names), mends)
    yield from _places(table, mends)


def _gaps(table: EpisodeTable, mends: RepairCommands) -> Iterator[DatasetFinding]:
    before = np.concatenate([[0], table.to_index[:-1]])
    rows = np.flatnonzero(table.from_index != before)
    if len(rows):
        begins, ended = int(table.from_index[rows[0]]), int(before[rows[0]])
        verb = "overlap" if begins < ended else "leave a gap"
        what = f"frames {verb}: it begins at {begins}, the one before ends at {ended}"
        where = _place(table, table.numbers(rows))
        yield DatasetFinding(FindingLevel.ERROR, "episodes.gap", what, where, mends.rewritten())


def _places(table: EpisodeTable, mends: RepairCommands) -> Iterator[DatasetFinding]:
    """Check that rows name their own file, by which LeRobot's edit tools find them."""
    if table.says_written_in is None:
        return
    moved = [
        row
        for row, (said, found) in enumerate(
            zip(table.says_written_in, table.written_in, strict=True)
        )
        if found != EPISODES_PATH.format(chunk_index=said[0] or 0, file_index=said[1] or 0)
    ]
    if moved:
        what = "meta/episodes/* names another file than it is in: LeRobot's tools that edit fail"
        where = _place(table, table.numbers(moved))
        yield DatasetFinding(FindingLevel.WARNING, "episodes.place", what, where, mends.rewritten())


def _numbering(table: EpisodeTable) -> Iterator[DatasetFinding]:
    expected = np.arange(len(table))
    if not np.array_equal(table.episode, expected):
        row = int(np.flatnonzero(table.episode != expected)[0])
        what = f"episode_index of row {row} is {int(table.episode[row])}: not 0, 1, 2 ... in order"
        yield DatasetFinding(FindingLevel.ERROR, "episodes.numbers", what, table.written_in[row])


def _task_names(
    table: EpisodeTable, known: set[str], mends: RepairCommands
) -> Iterator[DatasetFinding]:
    unknown = [
        (row, name) for row, names in enumerate(table.tasks) for name in names if name not in known
    ]
    if unknown:
        what = f"its task {strip_control_codes(unknown[0][1], 80)!r} is not among the tasks"
        where = _place(table, table.numbers(sorted({row for row, _ in unknown})))
        yield DatasetFinding(FindingLevel.ERROR, "tasks.unknown", what, where, mends.rewritten())


def _wrong(table: EpisodeTable, kind: str, what: str, episodes: list[int]) -> DatasetFinding:
    where = _place(table, episodes)
    return DatasetFinding(FindingLevel.ERROR, kind, what, where, leave_out=tuple(episodes))


def _place(table: EpisodeTable, episodes: list[int]) -> str:
    row = int(np.flatnonzero(table.episode == episodes[0])[0])
    return f"{table.written_in[row]}, {episodes_text(episodes)}"
