"""The data files of an edited dataset: rows are copied, and frames and tasks are renumbered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.edit.edit_plan import EditPlan, FileSegment, KeptEpisode, group_segments
from proctor.datasets.edit.files import link_or_copy
from proctor.datasets.format.arrow import pa, pq
from proctor.datasets.format.info import data_file
from proctor.datasets.format.schema import arrow_schema
from proctor.datasets.format.tables import (
    UNREADABLE,
    damaged_table_error,
    open_table,
    refuse_oversized,
)
from proctor.datasets.numbers.columns import column_to_array
from proctor.datasets.numbers.statistics import features_with_stats
from proctor.datasets.writing.file_allocation import FileNumber, file_number
from proctor.errors import DatasetError, strip_control_codes
from proctor.features import Array
from proctor.system.platform.platform_info import usable_cores

RENUMBERED = ("episode_index", "index", "task_index")
"""Columns whose values depend on a frame's position in its dataset."""


@dataclass(frozen=True)
class FrameNumbering:
    """Per kept episode: its rows in the source file, and its new task and frame numbers."""

    rows: tuple[slice, ...]
    """Rows of the source's data file."""
    old_tasks: tuple[Array, ...]
    """``task_index`` of every frame in the source."""
    new_tasks: tuple[Array, ...]
    """``task_index`` of every frame in the result."""
    tasks: tuple[str, ...]
    """All tasks of the result."""
    starts: tuple[int, ...]
    """``index`` of each episode's first frame."""


FramesCallback = Callable[[FileSegment, Mapping[str, Array]], None]
"""Takes a segment and the numeric columns [frames, ...] of its episodes, as in the result."""


def number_frames(edit_plan: EditPlan, segments: Sequence[FileSegment]) -> FrameNumbering:
    """Find the rows of all kept episodes, and number frames and tasks for the result."""
    rows: list[slice] = []
    old_tasks: list[Array] = []
    for segment in segments:
        table = _read(segment.path, ["episode_index", "task_index"])
        episodes, tasks = (
            column_to_array(segment.path, segment.source.info, name, table[name]).astype(np.int64)
            for name in ("episode_index", "task_index")
        )
        for position in segment.positions:
            found = _rows_of(segment.path, edit_plan.kept[position], episodes)
            rows.append(found)
            old_tasks.append(tasks[found])
    if edit_plan.repack:
        source = edit_plan.kept[0].source
        starts = tuple(kept.row.from_index for kept in edit_plan.kept)
        unchanged = tuple(old_tasks)
        return FrameNumbering(tuple(rows), unchanged, unchanged, source.tasks, starts)
    texts, new_tasks = _number_tasks(edit_plan.kept, old_tasks)
    lengths = [kept.row.length for kept in edit_plan.kept]
    starts = tuple(map(int, np.concatenate([[0], np.cumsum(lengths)[:-1]])))
    return FrameNumbering(tuple(rows), tuple(old_tasks), new_tasks, texts, starts)


def _rows_of(path: Path, kept: KeptEpisode, episodes: Array) -> slice:
    """Return the rows of an episode in its file, whose ``episode_index`` is ``episodes``."""
    found = np.flatnonzero(episodes == kept.row.index)
    if len(found) != kept.row.length or found[-1] - found[0] != len(found) - 1:
        raise DatasetError(
            f"{path} has {len(found)} rows of episode {kept.row.index}, expected "
            f"{kept.row.length} consecutive ones; run: proctor data check {kept.source.root}",
            code="dataset.wrong-length",
        )
    return slice(int(found[0]), int(found[-1]) + 1)


def _number_tasks(
    kept: Sequence[KeptEpisode], old: Sequence[Array]
) -> tuple[tuple[str, ...], tuple[Array, ...]]:
    """Return the result's tasks and every frame's new ``task_index``.

    Tasks that frames still use keep their order, and new tasks come last: a task keeps its number
    where possible, so that fewer files need to be written again.
    """
    used: dict[int, set[int]] = {}
    for episode, tasks in zip(kept, old, strict=True):
        if episode.task is None:
            used.setdefault(id(episode.source), set()).update(np.unique(tasks).tolist())
    texts: dict[str, int] = {}
    sources = {id(episode.source): episode.source for episode in kept}
    for source in sources.values():
        for task in sorted(used.get(id(source), ())):
            if not 0 <= task < len(source.tasks):
                raise DatasetError(
                    f"{source.root}: frames have task_index {task}, but there are "
                    f"{len(source.tasks)} tasks; run: proctor data check {source.root}",
                    code="dataset.unknown-task",
                )
            texts.setdefault(source.tasks[task], len(texts))
    for episode in kept:
        if episode.task is not None:
            texts.setdefault(episode.task, len(texts))
    new = []
    for episode, tasks in zip(kept, old, strict=True):
        if episode.task is not None:
            new.append(np.full(len(tasks), texts[episode.task], np.int64))
        else:
            numbers = np.array([texts.get(text, -1) for text in episode.source.tasks], np.int64)
            new.append(numbers[tasks])
    return tuple(texts), tuple(new)


def write_frames(
    edit_plan: EditPlan,
    segments: Sequence[FileSegment],
    numbering: FrameNumbering,
    into: Path,
    on_frames: FramesCallback | None,
) -> list[FileNumber]:
    """Write the data files of the result; return which file each episode is in.

    A file whose content does not change is linked or copied. Other rows are written again, with
    one row group per episode.

    Raises:
        DatasetError: a data file is damaged, or its columns do not match info.json.
        OSError: a file cannot be written.
    """
    info = edit_plan.info
    groups = group_segments(segments, edit_plan.file_limits.data)
    numbers = [file_number(info, number) for number in range(len(groups))]
    put = partial(_put_file, _Edit(edit_plan, numbering, reads_numbers=on_frames is not None))
    paths = [data_file(into, info, *number) for number in numbers]
    files: list[FileNumber] = []
    with ThreadPoolExecutor(min(8, usable_cores())) as executor:  # pyarrow releases the GIL
        try:
            written = executor.map(put, groups, paths)
            for number, group, arrays in zip(numbers, groups, written, strict=True):
                files += [number] * sum(len(segment.positions) for segment in group)
                if on_frames is not None:
                    for segment, values in zip(group, arrays, strict=True):
                        on_frames(segment, values)
        except BaseException:  # Ctrl-C too: begin no other file
            executor.shutdown(cancel_futures=True)
            raise
    return files


@dataclass(frozen=True)
class _Edit:
    """What the writing of every file needs."""

    plan: EditPlan
    numbering: FrameNumbering
    reads_numbers: bool


def _put_file(edit: _Edit, group: Sequence[FileSegment], path: Path) -> list[dict[str, Array]]:
    """Write, link or copy one file; return the numbers of its segments, if they are read."""
    plan, numbering, first = edit.plan, edit.numbering, group[0]
    if len(group) > 1 or not (plan.repack or _is_same(plan, first, numbering)):
        return _write(edit, group, path)
    link_or_copy(first.path, path, linked=plan.linked)
    if not edit.reads_numbers:
        return []
    table = _renumbered(plan, first, numbering, _numeric_columns(plan))
    return [_arrays_of(plan, first, table)]


def _write(edit: _Edit, group: Sequence[FileSegment], path: Path) -> list[dict[str, Array]]:
    """Write the rows of ``group`` into one file; return their numbers, if they are read."""
    plan, arrays = edit.plan, []
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = arrow_schema(plan.info)
    with pq.ParquetWriter(path, schema, compression="snappy") as writer:
        for segment in group:
            if plan.repack:
                _refuse_unnamed_columns(segment.path, schema)
            table = _renumbered(plan, segment, edit.numbering, schema.names)
            if edit.reads_numbers:
                arrays.append(_arrays_of(plan, segment, table))
            start = 0
            for position in segment.positions:
                length = plan.kept[position].row.length
                writer.write_table(table.slice(start, length), row_group_size=length)
                start += length
    return arrays


def _is_same(edit_plan: EditPlan, segment: FileSegment, numbering: FrameNumbering) -> bool:
    """Tell whether the result needs exactly the rows and columns of the segment's file."""
    if not segment.whole or segment.source.info.is_v2:
        return False
    for position in segment.positions:
        row = edit_plan.kept[position].row
        moved = row.index != position or row.from_index != numbering.starts[position]
        if moved or not np.array_equal(
            numbering.old_tasks[position], numbering.new_tasks[position]
        ):
            return False
    file = open_table(segment.path)
    try:
        schema = pq.read_schema(segment.path)
    except UNREADABLE as error:
        raise damaged_table_error(segment.path, error) from None
    wanted = arrow_schema(edit_plan.info)
    length = sum(edit_plan.kept[position].row.length for position in segment.positions)
    return (
        file.metadata.num_rows == length
        and not any(edit_plan.source_key(name) != name for name in wanted.names)
        and schema.names == wanted.names
        and all(schema.field(name).type == wanted.field(name).type for name in wanted.names)
    )


def _refuse_unnamed_columns(path: Path, schema: pa.Schema) -> None:
    """Refuse a file with columns that a joined file would lose."""
    unnamed = [name for name in open_table(path).schema_arrow.names if name not in schema.names]
    if unnamed:
        raise DatasetError(
            f"{path} has a column {strip_control_codes(unnamed[0], 80)}, which meta/info.json does "
            "not name",
            code="dataset.unnamed-column",
        )


def _renumbered(
    edit_plan: EditPlan, segment: FileSegment, numbering: FrameNumbering, keys: Sequence[str]
) -> pa.Table:
    """Return columns ``keys`` of a segment's frames with the names and numbers of the result."""
    names = {key: edit_plan.source_key(key) for key in keys}
    table = _read(segment.path, [name for key, name in names.items() if key not in RENUMBERED])
    spans = [numbering.rows[position] for position in segment.positions]
    table = pa.concat_tables([table.slice(s.start, s.stop - s.start) for s in spans])
    schema = arrow_schema(edit_plan.info)
    columns = {}
    for key, name in names.items():
        column: Any = (
            pa.array(_new_numbers(segment, numbering, key), pa.int64())
            if key in RENUMBERED
            else _cast(segment.path, table[name], schema.field(key).type, name)
        )
        columns[key] = column
    return pa.table(columns, schema=pa.schema([schema.field(key) for key in names]))


def _new_numbers(segment: FileSegment, numbering: FrameNumbering, key: str) -> Array:
    found = []
    for position in segment.positions:
        n = len(numbering.new_tasks[position])
        values = {
            "episode_index": np.full(n, position, np.int64),
            "index": numbering.starts[position] + np.arange(n, dtype=np.int64),
            "task_index": numbering.new_tasks[position],
        }
        found.append(values[key])
    return np.concatenate(found)


def _cast(path: Path, column: Any, kind: pa.DataType, name: str) -> Any:
    if isinstance(column.type, pa.ExtensionType):  # another package registered them
        column = pa.chunked_array([chunk.storage for chunk in column.chunks])
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise DatasetError(
            f"{path}: {name} is not what meta/info.json says "
            f"({strip_control_codes(str(error), 200)})",
            code="dataset.wrong-type",
        ) from None


def _numeric_columns(edit_plan: EditPlan) -> list[str]:
    """Return the data columns that have statistics, without images."""
    with_stats = set(features_with_stats(edit_plan.info.features))
    return [
        key for key in edit_plan.info.columns if key in with_stats - set(edit_plan.info.image_keys)
    ]


def _arrays_of(edit_plan: EditPlan, segment: FileSegment, table: pa.Table) -> dict[str, Array]:
    return {
        key: column_to_array(segment.path, edit_plan.info, key, table[key])
        for key in _numeric_columns(edit_plan)
    }


def _read(path: Path, names: Sequence[str]) -> pa.Table:
    """Return columns of a data file, with text columns as plain strings."""
    file = open_table(path)
    missing = [name for name in names if name not in file.schema_arrow.names]
    if missing:
        raise DatasetError(
            f"{path} has no column {missing[0]}, which meta/info.json names",
            code="dataset.missing-column",
        )
    refuse_oversized(path, file.metadata, names)
    try:
        return pq.ParquetFile(path).read(columns=list(names)).select(list(names))
    except UNREADABLE as error:
        raise damaged_table_error(path, error) from None
