"""Task and subtask instructions of a dataset."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from proctor.datasets.format.arrow import pa
from proctor.datasets.format.info import Info
from proctor.datasets.format.tables import read_lines, read_table, text_column, write_table
from proctor.errors import DatasetError, strip_control_codes

TASKS_FILE, OLD_TASKS_FILE = "meta/tasks.parquet", "meta/tasks.jsonl"
SUBTASKS_FILE = "meta/subtasks.parquet"
"""File of LeRobot 0.4, only read: later releases use language columns instead."""
SUBTASK_INDEX = "subtask_index"
_MOST_TASKS = 10**6


def read_tasks(root: Path, info: Info) -> tuple[str, ...]:
    """Return the task instructions; a frame's ``task_index`` is the position."""
    path = root / (OLD_TASKS_FILE if info.is_v2 else TASKS_FILE)
    if info.total_tasks == 0 and not path.exists():
        return ()
    if info.is_v2:
        lines = ((line.get("task_index"), line.get("task")) for line in read_lines(path))
        return _by_number(path, "task", lines)
    return _read_words(path, "task")


def read_subtasks(root: Path, info: Info) -> tuple[str, ...] | None:
    """Return the subtask instructions by ``subtask_index``, or None if there are none."""
    path = root / SUBTASKS_FILE
    if SUBTASK_INDEX not in info.features or not path.exists():
        return None
    dtype, shape = info.dtype(SUBTASK_INDEX), info.shape(SUBTASK_INDEX)
    if not dtype.lstrip("u").startswith("int") or shape not in ((), (1,)):
        raise DatasetError(
            f"{root}: {SUBTASK_INDEX} is {dtype} {list(shape)}, expected int64 [1]",
            code="dataset.invalid-info",
        )
    return _read_words(path, "subtask")


def _read_words(path: Path, name: str) -> tuple[str, ...]:
    """Return the texts of a table ``<name>_index``, ``<name>``; the text may be pandas' index."""
    table = read_table(path, (f"{name}_index", name, "__index_level_0__"))
    if f"{name}_index" not in table.column_names or table.num_columns < 2:
        raise DatasetError(
            f"{path} has no columns {name}_index and {name}", code="dataset.missing-column"
        )
    words = next(column for column in table.column_names if column != f"{name}_index")
    texts = [text for chunk in table[words].chunks for text in text_column(path, chunk)]
    pairs = zip(table[f"{name}_index"].to_pylist(), texts, strict=True)
    found = _by_number(path, name, pairs)
    if len(found) != len(texts):
        raise DatasetError(
            f"{path}: {name}_index does not count from 0 to {len(texts) - 1}",
            code="dataset.task-numbering",
        )
    return found


def _by_number(path: Path, name: str, pairs: Iterable[tuple[Any, Any]]) -> tuple[str, ...]:
    """Return the texts by their numbers; a missing number gets an empty text."""
    words: dict[int, str] = {}
    for index, word in pairs:
        is_one = isinstance(index, int) and isinstance(word, str) and 0 <= index < _MOST_TASKS
        if not is_one or index in words:
            shown = strip_control_codes(repr(index), 40)
            raise DatasetError(
                f"{path}: {name}_index {shown} is invalid or occurs twice",
                code="dataset.task-numbering",
            )
        words[index] = word
    return tuple(words.get(i, "") for i in range(max(words, default=-1) + 1))


def write_tasks(root: Path, tasks: Sequence[str]) -> None:
    """Write meta/tasks.parquet, with the texts as pandas' index.

    Without this metadata LeRobot silently reads row numbers instead of texts.
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
