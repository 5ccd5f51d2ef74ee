"""Check that data files hold every episode's rows, in order, with right times and values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from proctor.datasets.checks.columns import check_schema, numbers_of
from proctor.datasets.checks.findings import (
    DatasetFinding,
    FindingLevel,
    RepairCommands,
    episodes_text,
)
from proctor.datasets.checks.measured_statistics import MeasuredStatistics
from proctor.datasets.checks.table import EpisodeTable, Whole
from proctor.datasets.format.arrow import pa
from proctor.datasets.format.info import DEFAULT_FEATURES, Info, data_file
from proctor.datasets.format.tables import open_table, read_table
from proctor.errors import DatasetError, strip_control_codes

_TOLERANCE_S = 1e-4
"""LeRobot's tolerance between a timestamp and the frame, in seconds."""
_MISPLACED = {"rows.length", "rows.missing", "rows.scattered", "rows.orphaned"}


@dataclass
class RowCheck:
    """Checks the data files one by one, and collects problems and statistics."""

    root: Path
    info: Info
    table: EpisodeTable
    n_tasks: int | None
    mends: RepairCommands
    measured: dict[str, MeasuredStatistics] = field(default_factory=dict)
    """Numeric feature -> its measured statistics."""
    is_whole: bool = True
    """Whether the rows are exactly those of the episodes, so that statistics are valid."""
    _met: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    _mends: dict[str, str] = field(default_factory=dict)
    """Kind of finding -> its repair command, if that is not to delete episodes."""
    _file_of: dict[int, str] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)

    def run(self) -> Iterator[DatasetFinding]:
        """Yield the findings; afterwards ``measured`` is complete."""
        places: dict[Path, list[int]] = {}
        for row, (chunk, file) in enumerate(zip(self.table.chunk, self.table.file, strict=True)):
            path = data_file(self.root, self.info, int(chunk), int(file))
            places.setdefault(path, []).append(row)
        schemas_said: set[str] = set()
        position = 0
        for path in sorted({*places, *self.files_on_disk()}):
            rows = places.get(path, [])
            try:
                found = _schema(path)
                if rows:
                    for finding in check_schema(self.info, found, self._name(path), self.mends):
                        if finding.what not in schemas_said:
                            schemas_said.add(finding.what)
                            yield finding
                position += self._file(path, found, rows, position)
            except DatasetError as error:
                if rows:
                    yield self._unreadable(path, rows, error)
        self._note_missing(places)
        yield from self._summed_up()

    def files_on_disk(self) -> list[Path]:
        """Return all data files, also those that no episode uses."""
        return sorted((self.root / "data").glob("*/*.parquet"))

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _unreadable(self, path: Path, rows: list[int], error: DatasetError) -> DatasetFinding:
        episodes = [int(self.table.episode[row]) for row in rows]
        self._seen.update(episodes)
        missing = not path.exists()
        reason = "no such file" if missing else str(error).replace(f"{self.root}/", "")
        where = f"{self._name(path)}, {episodes_text(episodes)}"
        kind = "data.missing" if missing else "data.unreadable"
        self.is_whole = False
        return DatasetFinding(FindingLevel.ERROR, kind, reason, where, leave_out=tuple(episodes))

    def _file(self, path: Path, schema: pa.Schema, rows: list[int], position: int) -> int:
        """Check one file; return its number of rows."""
        if not rows:  # an unused file, which another check reports
            return int(open_table(path).metadata.num_rows)
        names = [name for name in DEFAULT_FEATURES if name in schema.names]
        columns = read_table(path, names)
        if len(names) < len(DEFAULT_FEATURES) or columns.num_rows == 0:
            self._seen.update(int(self.table.episode[row]) for row in rows)
            if columns.num_rows == 0:
                self._note("rows.missing", path, rows, "its file has no rows")
            return int(columns.num_rows)
        frames = {name: _counted(path, columns, name) for name in names}
        episodes = _whole(frames["episode_index"])
        starts = np.concatenate([[0], np.flatnonzero(np.diff(episodes)) + 1])
        ends = np.append(starts[1:], len(episodes))
        row_of = {int(self.table.episode[row]): row for row in rows}
        kept = np.full(len(starts), -1, np.int64)
        for run, (start, end) in enumerate(zip(starts, ends, strict=True)):
            episode = int(episodes[start])
            self._file_of.setdefault(episode, self._name(path))
            if self._is_expected(episode, row_of):
                row = row_of[episode]
                kept[run] = row
                part = {name: column[start:end] for name, column in frames.items()}
                self._episode(row, part, position + int(start))
        self._numbers(path, schema, starts, kept)
        return len(episodes)

    def _is_expected(self, episode: int, row_of: dict[int, int]) -> bool:
        if episode not in row_of:
            if 0 <= episode < self.info.total_episodes:
                what = "this file has rows of it, but it belongs in another file"
                self._meet("rows.orphaned", episode, what)
            else:
                what = "this file has rows of it, but info.json does not count it"
                self._meet("rows.beyond", episode, what, self.mends.rewritten())
            return False
        if episode in self._seen:
            self._meet("rows.scattered", episode, "its rows do not follow each other")
            return False
        self._seen.add(episode)
        return True

    def _episode(self, row: int, frames: dict[str, npt.NDArray[np.generic]], at: int) -> None:
        """Compare the rows of one episode with its row in the episodes table."""
        episode, length = int(self.table.episode[row]), len(frames["index"])
        count = np.arange(length)
        found = _whole(frames["frame_index"])
        if (bad := _first(found != count)) is not None:
            self._meet("rows.frame_index", episode, f"frame_index {_step(found, bad)}")
        self._task_numbers(episode, _whole(frames["task_index"]))
        if length != self.table.length[row]:
            what = f"{length} rows, its length is {int(self.table.length[row])}"
            self._meet("rows.length", episode, what)
            return  # further findings would have the same cause
        self._times(episode, frames["timestamp"].astype(np.float64))
        first = int(self.table.from_index[row])
        index = _whole(frames["index"])
        if (bad := _first(index != first + count)) is not None:
            what = f"index of frame {bad} is {int(index[bad])}, expected {first + bad}"
            self._meet("rows.index", episode, what)
        elif at != first:
            what = f"its rows begin at position {at} of all tables, where LeRobot looks for {first}"
            self._meet("rows.position", episode, what, self.mends.rewritten())

    def _times(self, episode: int, found: npt.NDArray[np.float64]) -> None:
        expected = np.arange(len(found)) / self.info.fps
        # After hours, float32 cannot represent a tenth of a millisecond.
        allowed = np.maximum(_TOLERANCE_S, np.spacing(expected.astype(np.float32)))
        if (bad := _first(~(np.abs(found - expected) <= allowed))) is not None:
            what = (
                f"timestamp of frame {bad} is {found[bad]:.4f} s, at {self.info.fps} fps it is "
                f"{expected[bad]:.4f}"
            )
            self._meet("rows.timestamp", episode, what)

    def _task_numbers(self, episode: int, found: Whole) -> None:
        if self.n_tasks is None:
            return
        if (bad := _first((found < 0) | (found >= self.n_tasks))) is not None:
            what = f"task_index of frame {bad} is {int(found[bad])}, there are {self.n_tasks} tasks"
            self._meet("rows.task", episode, what)

    def _numbers(self, path: Path, schema: pa.Schema, starts: Whole, kept: Whole) -> None:
        """Measure every numeric feature, one column at a time to save memory."""
        for key in self.info.columns:
            if key in DEFAULT_FEATURES or key not in schema.names:
                continue
            if self.info.dtype(key) in ("string", "image", "language"):
                continue
            column = read_table(path, [key])[key]
            first = int(self.table.episode[max(int(kept[0]), 0)])
            mend = self.mends.without_feature(key)
            if column.null_count:
                self._meet("rows.null", first, f"{key} has rows without a value", mend)
                continue
            try:
                values = numbers_of(column)
            except ValueError as error:
                self._meet("rows.shape", first, f"{key} holds {error}", mend)
                continue
            if values.size != len(values) * math.prod(self.info.entry(key)["shape"]):
                what = f"{key} holds {list(values.shape[1:])} elements per frame"
                said = self.info.entry(key)["shape"]
                self._meet("rows.shape", first, f"{what}, not {said}", mend)
                continue
            measured = self.measured.setdefault(key, MeasuredStatistics.empty(len(self.table)))
            for row in measured.add(values, starts, kept):
                self._meet("rows.finite", int(self.table.episode[row]), f"{key} is not finite")

    def _note_missing(self, places: dict[Path, list[int]]) -> None:
        for path, rows in places.items():
            gone = [row for row in rows if int(self.table.episode[row]) not in self._seen]
            if gone:
                self._note("rows.missing", path, gone, "none of its rows are there")

    def _note(self, kind: str, path: Path, rows: list[int], what: str) -> None:
        for row in rows:
            episode = int(self.table.episode[row])
            self._file_of.setdefault(episode, self._name(path))
            self._meet(kind, episode, what)

    def _meet(self, kind: str, episode: int, what: str, mend: str = "") -> None:
        self._met.setdefault(kind, []).append((episode, what))
        if mend:
            self._mends[kind] = mend

    def _summed_up(self) -> Iterator[DatasetFinding]:
        """Yield one finding per kind, described by its first episode."""
        if not _MISPLACED.isdisjoint(self._met):
            self.is_whole = False
            self._met.pop("rows.position", None)  # a consequence of the others
        for kind, met in self._met.items():
            episodes = sorted({episode for episode, _ in met})
            first, what = min(met)
            where = f"{self._file_of.get(first, 'data')}, {episodes_text(episodes)}"
            level = FindingLevel.WARNING if kind == "rows.beyond" else FindingLevel.ERROR
            mend = self._mends.get(kind, "")
            leave_out = () if mend else tuple(episodes)
            yield DatasetFinding(level, kind, what, where, mend, leave_out)


def _schema(path: Path) -> pa.Schema:
    return open_table(path).metadata.schema.to_arrow_schema()


def _first(wrong: npt.NDArray[np.bool_]) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None


def _step(found: Whole, bad: int) -> str:
    if bad == 0:
        return f"begins at {int(found[0])}"
    return f"jumps from {int(found[bad - 1])} to {int(found[bad])}"


def _counted(path: Path, table: pa.Table, name: str) -> npt.NDArray[np.generic]:
    """Return an index or timestamp column."""
    try:
        found = numbers_of(table[name])
    except ValueError as error:
        raise DatasetError(
            f"{path}: column {name} holds {strip_control_codes(str(error), 80)}",
            code="dataset.wrong-type",
        ) from None
    if found.size != table.num_rows or found.dtype.kind not in "iufb":
        raise DatasetError(
            f"{path}: column {name} is not one number in every row", code="dataset.wrong-type"
        )
    return found.reshape(-1)


def _whole(numbers: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Convert to integers; values that are not integers become an impossible number."""
    with np.errstate(invalid="ignore"):
        return numbers.astype(np.int64)
