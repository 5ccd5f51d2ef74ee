"""The Parquet and JSON files beside a dataset's frames: tables, tasks, statistics, schemas.

A table is never read on the word of its own footer: what it would fill is worked out first.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from proctor.datasets.info import Info
from proctor.errors import DatasetError, MissingExtra, one_line
from proctor.features import Array
from proctor.machine.files import read_plain, write_whole

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    raise MissingExtra("pyarrow", "dataset") from None

Stats: TypeAlias = dict[str, dict[str, Array]]
"""Of a feature: min, max, mean, std, count, q01 ... Of cameras, shape (channels, 1, 1)."""
TASKS_FILE, STATS_FILE, OLD_TASKS_FILE = "meta/tasks.parquet", "meta/stats.json", "meta/tasks.jsonl"
UNREADABLE = (OSError, ValueError, MemoryError, pa.ArrowException)
"""What pyarrow raises for a file that is cut, damaged or absurd."""
_MOST_TASKS = 10**6
_LEAST_ROOM, _GROWTH = 2**27, 100
"""Bytes that any table may fill, and how many more a byte of a larger file may: constants in a
column cost nothing on disk, so a small file may claim any size."""


def open_table(path: Path) -> pq.ParquetFile:
    """Open a Parquet file. Texts come as dictionaries: a few bytes may say a long one often.

    Raises:
        DatasetError: it is missing, cut or damaged.
    """
    try:
        if not path.is_file():
            raise DatasetError(f"{path} is missing")
        meta = pq.read_metadata(path)
        fields = meta.schema.to_arrow_schema()
        inside = tuple(f"{field.name}." for field in fields if _holds_structs(field.type))
        leaves = [meta.schema.column(i) for i in range(meta.num_columns)]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        texts = [name for name in texts if not name.startswith(inside)]
        return pq.ParquetFile(path, metadata=meta, read_dictionary=texts, memory_map=True)
    except UNREADABLE as error:
        raise damaged(path, error) from None


def _holds_structs(kind: pa.DataType) -> bool:
    """Tell whether texts are in it that Arrow cannot give as dictionaries: PNG files, say."""
    return pa.types.is_struct(kind) or (pa.types.is_list(kind) and _holds_structs(kind.value_type))


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a table, or those of ``columns`` that it has. Texts come as dictionaries.

    Raises:
        DatasetError: it is missing, cut, damaged, or claims to be larger than it can be.
    """
    file = open_table(path)
    names = file.schema_arrow.names
    wanted = names if columns is None else [name for name in names if name in set(columns)]
    refuse_absurd(path, file.metadata, wanted)
    try:
        return _whole(file, wanted)
    except UNREADABLE as error:
        raise damaged(path, error) from None


def _whole(file: pq.ParquetFile, columns: Sequence[str]) -> pa.Table:
    """Return some columns of a table.

    Arrow cannot join dictionaries inside lists or structs over row groups: these are read group by
    group.
    """
    nested = [name for name in columns if _hides_texts(file.schema_arrow.field(name).type)]
    if file.num_row_groups < 2 or not nested:
        return file.read(columns=columns, use_threads=False).select(columns)
    whole = file.read(columns=[name for name in columns if name not in nested], use_threads=False)
    groups = [
        file.read_row_group(i, columns=nested, use_threads=False)
        for i in range(file.num_row_groups)
    ]
    for name in nested:
        parts = [part for group in groups for part in group[name].chunks]
        whole = whole.append_column(name, pa.chunked_array(parts, groups[0][name].type))
    return whole.select(columns)


def _hides_texts(kind: pa.DataType) -> bool:
    if not pa.types.is_nested(kind):
        return False
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return any(pa.types.is_dictionary(part) or _hides_texts(part) for part in inner)


def refuse_absurd(path: Path, meta: pq.FileMetaData, columns: Sequence[str]) -> None:
    """Refuse a table that would fill more memory than a file of its size can mean.

    Raises:
        DatasetError: it would.
    """
    names, prefixes = set(columns), tuple(f"{name}." for name in columns)
    paths = [meta.schema.column(i).path for i in range(meta.num_columns)]
    chosen = [i for i, name in enumerate(paths) if name in names or name.startswith(prefixes)]
    filled = 0
    for group in (meta.row_group(i) for i in range(meta.num_row_groups)):
        for column in (group.column(i) for i in chosen):
            filled += max(8 * column.num_values, column.total_uncompressed_size)
    size = path.stat().st_size
    if filled > _LEAST_ROOM + _GROWTH * size:
        raise DatasetError(f"{path} is damaged: {filled} bytes in a file of {size}")


def texts_of(array: pa.Array) -> list[Any]:
    """Return the values of a column of texts; what is said often is held once."""
    if not pa.types.is_dictionary(array.type):
        return list(array.to_pylist())
    words = array.dictionary.to_pylist()
    codes = array.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
    words.append(None)
    return [words[code] for code in codes]


def damaged(path: Path, error: BaseException) -> DatasetError:
    """Return what is said of a table that pyarrow cannot read."""
    return DatasetError(
        f"{path} is cut or damaged: {one_line(str(error) or type(error).__name__, 200)}"
    )


def write_table(path: Path, table: pa.Table) -> None:
    """Write a small table as one row group, whole or not at all."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="snappy", row_group_size=max(1, len(table)))
    write_whole(path, sink.getvalue())


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a .jsonl file of a v2.x dataset.

    Raises:
        DatasetError: it is missing or a line is no object.
    """
    try:
        content = read_plain(path, 2**30)
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing") from None
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error}") from None
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise DatasetError(f"{path}, line {number}: expected a JSON object")
        yield found


def read_tasks(root: Path, info: Info) -> tuple[str, ...]:
    """Return the tasks in words; a frame's ``task_index`` is the position.

    Raises:
        DatasetError: the file is missing (and the dataset has tasks) or damaged.
    """
    path = root / (OLD_TASKS_FILE if info.is_v2 else TASKS_FILE)
    if info.total_tasks == 0 and not path.exists():
        return ()
    if info.is_v2:
        pairs = [(line.get("task_index"), line.get("task")) for line in read_lines(path)]
    else:
        table = read_table(path, ("task_index", "task", "__index_level_0__"))
        if "task_index" not in table.column_names or table.num_columns < 2:
            raise DatasetError(f"{path} has no columns task_index and task")
        words = next(name for name in table.column_names if name != "task_index")
        texts = [text for chunk in table[words].chunks for text in texts_of(chunk)]
        pairs = list(zip(table["task_index"].to_pylist(), texts, strict=True))
    tasks: dict[int, str] = {}
    for index, task in pairs:
        known = isinstance(index, int) and isinstance(task, str)
        if not known or index in tasks or not 0 <= index < _MOST_TASKS:
            raise DatasetError(f"{path}: task_index {one_line(repr(index), 40)} is none, or twice")
        tasks[index] = task
    if not info.is_v2 and sorted(tasks) != list(range(len(tasks))):
        raise DatasetError(f"{path}: task_index does not count from 0 to {len(tasks) - 1}")
    return tuple(tasks.get(i, "") for i in range(max(tasks, default=-1) + 1))


def write_tasks(root: Path, tasks: Sequence[str]) -> None:
    """Write meta/tasks.parquet, with the words as pandas' index.

    Without that note LeRobot reads row numbers instead of words, and says nothing.
    """
    table = pa.table(
        {
            "task_index": pa.array(range(len(tasks)), pa.int64()),
            "task": pa.array(tasks, pa.string()),
        }
    )

    def column(name: str, pandas_type: str, numpy_type: str) -> dict[str, Any]:
        same = {"name": name, "field_name": name, "metadata": None}
        return {**same, "pandas_type": pandas_type, "numpy_type": numpy_type}

    note = {
        "index_columns": ["task"],
        "column_indexes": [
            {
                "name": None,
                "field_name": None,
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": {"encoding": "UTF-8"},
            }
        ],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "attributes": {},
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.3.3",
    }
    write_table(root / TASKS_FILE, table.replace_schema_metadata({"pandas": json.dumps(note)}))


def read_stats(root: Path) -> Stats:
    """Return the whole dataset's statistics; empty where there is no meta/stats.json.

    Raises:
        DatasetError: it holds something else.
    """
    path = root / STATS_FILE
    try:
        found = json.loads(read_plain(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is not JSON: {one_line(str(error), 200)}") from None
    return as_stats(path, found)


def as_stats(path: Path, found: Any) -> Stats:
    """Return what a JSON file says as arrays.

    Raises:
        DatasetError: it is something else.
    """
    stats: Stats = {}
    try:
        for key, entry in found.items():
            stats[key] = {name: np.asarray(value) for name, value in entry.items()}
            if not all(array.dtype.kind in "biuf" for array in stats[key].values()):
                raise ValueError
    except (AttributeError, ValueError, TypeError, OverflowError):
        raise DatasetError(f"{path} holds no statistics: expected lists of numbers") from None
    return stats


def write_stats(root: Path, stats: Stats) -> None:
    """Write meta/stats.json, whole or not at all."""
    plain = {
        key: {name: np.asarray(value).tolist() for name, value in entry.items()}
        for key, entry in stats.items()
    }
    write_whole(root / STATS_FILE, json.dumps(plain, indent=4, ensure_ascii=False).encode())
