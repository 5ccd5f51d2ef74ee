"""The tables of an edited dataset's frames: rows copied as they are, their numbers renewed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from proctor.datasets.edit.edit_plan import EditPlan, FileNumber, FileSegment, KeptEpisode, grouped
from proctor.datasets.edit.files import link_or_copy
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
from proctor.datasets.writing.file_allocation import file_number
from proctor.errors import DatasetError, strip_control_codes
from proctor.features import Array

RENEWED = ("episode_index", "index", "task_index")
"""The columns that say where a frame stands in its dataset."""


@dataclass(frozen=True)
class FrameNumbering:
    """Where the frames of each kept episode are taken from, and what they are called now."""

    rows: tuple[slice, ...]
    """Of the source's file."""
    old_tasks: tuple[Array, ...]
    new_tasks: tuple[Array, ...]
    """The task of every frame, in the words' old and new order."""
    tasks: tuple[str, ...]
    """All tasks of the result."""
    starts: tuple[int, ...]
    """``index`` of each episode's first frame."""


Heard = Callable[[FileSegment, Mapping[str, Array]], None]
"""Is told the numbers [frames, ...] of a part's episodes, the renewed ones too."""


def number_frames(edit_plan: EditPlan, parts: Sequence[FileSegment]) -> FrameNumbering:
    """Find the rows of all kept episodes and number frames and tasks anew.

    Raises:
        DatasetError: a table is missing, or has other rows than the episode says.
    """
    rows: list[slice] = []
    old_tasks: list[Array] = []
    for part in parts:
        path = _path_of(part)
        table = _read(path, ["episode_index", "task_index"])
        of_frame, tasks = (
            column_to_array(path, part.source.info, name, table[name]).astype(np.int64)
            for name in ("episode_index", "task_index")
        )
        for place in part.places:
            found = _rows_of(path, edit_plan.kept[place], of_frame)
            rows.append(found)
            old_tasks.append(tasks[found])
    words, new_tasks = _number_tasks(edit_plan.kept, old_tasks)
    lengths = [kept.row.length for kept in edit_plan.kept]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return FrameNumbering(tuple(rows), tuple(old_tasks), new_tasks, words, tuple(map(int, starts)))


def _rows_of(path: Path, kept: KeptEpisode, of_frame: Array) -> slice:
    """Return where the rows of an episode lie in its file."""
    found = np.flatnonzero(of_frame == kept.row.index)
    if len(found) != kept.row.length or found[-1] - found[0] != len(found) - 1:
        raise DatasetError(
            f"{path} has {len(found)} rows of episode {kept.row.index}, expected "
            f"{kept.row.length} one after the other; proctor data check tells more"
        )
    return slice(int(found[0]), int(found[-1]) + 1)


def _number_tasks(
    kept: Sequence[KeptEpisode], old: Sequence[Array]
) -> tuple[tuple[str, ...], tuple[Array, ...]]:
    """Return all tasks that frames still have, and each frame's: in their old order, new ones last.

    A task keeps its number where it can, so that tables need not be written again.
    """
    used: dict[int, set[int]] = {}
    for episode, tasks in zip(kept, old, strict=True):
        if episode.task is None:
            used.setdefault(id(episode.source), set()).update(np.unique(tasks).tolist())
    words: dict[str, int] = {}
    sources = {id(episode.source): episode.source for episode in kept}
    for source in sources.values():
        for task in sorted(used.get(id(source), ())):
            if not 0 <= task < len(source.tasks):
                raise DatasetError(
                    f"{source.root}: frames have task_index {task}, but there are "
                    f"{len(source.tasks)} tasks; proctor data check tells more"
                )
            words.setdefault(source.tasks[task], len(words))
    for episode in kept:
        if episode.task is not None:
            words.setdefault(episode.task, len(words))
    new = []
    for episode, tasks in zip(kept, old, strict=True):
        if episode.task is not None:
            new.append(np.full(len(tasks), words[episode.task], np.int64))
        else:
            numbers = np.array([words.get(word, -1) for word in episode.source.tasks], np.int64)
            new.append(numbers[tasks])
    return tuple(words), tuple(new)


def write_frames(
    edit_plan: EditPlan,
    parts: Sequence[FileSegment],
    numbering: FrameNumbering,
    into: Path,
    heard: Heard,
) -> list[FileNumber]:
    """Write the tables of the result; return which file each episode is in.

    A file that stays as it is is taken over; all other rows are copied, a row group an episode.

    Raises:
        DatasetError: a table is damaged or has other columns than its dataset says.
        OSError: a file cannot be written.
    """
    info = edit_plan.info
    groups = grouped(parts, _path_of, info.data_files_size_in_mb)
    files: list[FileNumber] = []
    for position, group in enumerate(groups):
        file = file_number(info, position)
        path = data_file(into, info, *file)
        if len(group) == 1 and _is_same(edit_plan, group[0], numbering):
            link_or_copy(_path_of(group[0]), path, linked=edit_plan.linked)
            table = _renewed(edit_plan, group[0], numbering, _counted_columns(edit_plan))
            heard(group[0], _numbers_of(edit_plan, group[0], table))
        else:
            _write(edit_plan, group, numbering, path, heard)
        files += [file] * sum(len(part.places) for part in group)
    return files


def _path_of(part: FileSegment) -> Path:
    return data_file(part.source.root, part.source.info, *part.file)


def _is_same(edit_plan: EditPlan, part: FileSegment, numbering: FrameNumbering) -> bool:
    """Tell whether the file of a part is, row by row, what the result needs."""
    if not part.whole or part.source.info.is_v2:
        return False
    for place in part.places:
        row = edit_plan.kept[place].row
        moved = row.index != place or row.from_index != numbering.starts[place]
        if moved or not np.array_equal(numbering.old_tasks[place], numbering.new_tasks[place]):
            return False
    path = _path_of(part)
    file = open_table(path)
    schema, wanted = pq.read_schema(path), arrow_schema(edit_plan.info)
    lengths = sum(edit_plan.kept[place].row.length for place in part.places)
    return (
        file.metadata.num_rows == lengths
        and not any(edit_plan.source_key(name) != name for name in wanted.names)
        and schema.names == wanted.names
        and all(schema.field(name).type == wanted.field(name).type for name in wanted.names)
    )


def _write(
    edit_plan: EditPlan,
    group: Sequence[FileSegment],
    numbering: FrameNumbering,
    path: Path,
    heard: Heard,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = arrow_schema(edit_plan.info)
    with pq.ParquetWriter(path, schema, compression="snappy") as writer:
        for part in group:
            table = _renewed(edit_plan, part, numbering, schema.names)
            heard(part, _numbers_of(edit_plan, part, table))
            start = 0
            for place in part.places:
                length = edit_plan.kept[place].row.length
                writer.write_table(table.slice(start, length), row_group_size=length)
                start += length


def _renewed(
    edit_plan: EditPlan, part: FileSegment, numbering: FrameNumbering, keys: Sequence[str]
) -> pa.Table:
    """Return the frames of a part as they stand in the result."""
    path = _path_of(part)
    names = {key: edit_plan.source_key(key) for key in keys}
    table = _read(path, [name for key, name in names.items() if key not in RENEWED])
    spans = [numbering.rows[place] for place in part.places]
    table = pa.concat_tables([table.slice(s.start, s.stop - s.start) for s in spans])
    schema = arrow_schema(edit_plan.info)
    columns = {}
    for key, name in names.items():
        column: Any = (
            pa.array(_renewed_numbers(part, numbering, key), pa.int64())
            if key in RENEWED
            else _cast(path, table[name], schema.field(key).type, name)
        )
        columns[key] = column
    return pa.table(columns, schema=pa.schema([schema.field(key) for key in names]))


def _renewed_numbers(part: FileSegment, numbering: FrameNumbering, key: str) -> Array:
    found = []
    for place in part.places:
        n = len(numbering.new_tasks[place])
        values = {
            "episode_index": np.full(n, place, np.int64),
            "index": numbering.starts[place] + np.arange(n, dtype=np.int64),
            "task_index": numbering.new_tasks[place],
        }
        found.append(values[key])
    return np.concatenate(found)


def _cast(path: Path, column: Any, kind: pa.DataType, name: str) -> Any:
    if isinstance(column.type, pa.ExtensionType):  # where somebody has registered them
        column = pa.chunked_array([chunk.storage for chunk in column.chunks])
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise DatasetError(
            f"{path}: {name} is not what meta/info.json says "
            f"({strip_control_codes(str(error), 200)})"
        ) from None


def _counted_columns(edit_plan: EditPlan) -> list[str]:
    """Return the columns that are numbers."""
    counted = set(features_with_stats(edit_plan.info.features))
    return [
        key for key in edit_plan.info.columns if key in counted - set(edit_plan.info.image_keys)
    ]


def _numbers_of(edit_plan: EditPlan, part: FileSegment, table: pa.Table) -> dict[str, Array]:
    path = _path_of(part)
    keys = _counted_columns(edit_plan)
    return {key: column_to_array(path, edit_plan.info, key, table[key]) for key in keys}


def _read(path: Path, names: Sequence[str]) -> pa.Table:
    """Return columns of a table, texts as texts."""
    file = open_table(path)
    missing = [name for name in names if name not in file.schema_arrow.names]
    if missing:
        raise DatasetError(f"{path} has no column {missing[0]}, which meta/info.json names")
    refuse_oversized(path, file.metadata, names)
    try:
        return pq.ParquetFile(path).read(columns=list(names)).select(list(names))
    except UNREADABLE as error:
        raise damaged_table_error(path, error) from None
