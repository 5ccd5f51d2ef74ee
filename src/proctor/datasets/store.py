"""The columns that a dataset's frames are read from, decoded when first asked for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from proctor.datasets.columns import (
    Column,
    Numbers,
    TableFile,
    as_numbers,
    joined_texts,
    joined_things,
    number_shape,
    read_columns,
)
from proctor.datasets.info import Info
from proctor.datasets.tables import open_table, refuse_absurd
from proctor.errors import DatasetError
from proctor.features import Array
from proctor.machine.system import usable_cores

_NOT_NUMBERS = ("string", "language", "image")


class Columns:
    """The columns of some tables of frames, one after another: ``columns[key].take(rows)``."""

    def __init__(self, info: Info, files: Sequence[TableFile]) -> None:
        self._info, self._files = info, files
        self._rows = files[-1].start + files[-1].rows if files else 0
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {"_info": self._info, "_files": self._files, "_rows": self._rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        self._loaded: dict[str, Column] = {}
        self._lock = threading.Lock()

    def __getitem__(self, key: str) -> Column:
        """Return a column.

        Raises:
            DatasetError: a table is missing, damaged, too short or without it.
        """
        if key not in self._loaded:
            with self._lock:
                if key not in self._loaded:
                    self._load(self._beside(key))
        return self._loaded[key]

    def _beside(self, key: str) -> list[str]:
        """Return what is decoded with ``key``: all of a row but its pictures, which are large."""
        images = self._info.image_keys
        return [key] if key in images else [k for k in self._info.columns if k not in images]

    def _load(self, keys: list[str]) -> None:
        info = self._info
        numbers = {key: self._empty(key) for key in keys if info.dtype(key) not in _NOT_NUMBERS}
        others: dict[str, list[pa.ChunkedArray]] = {
            key: [None] * len(self._files) for key in keys if key not in numbers
        }

        def decode(place: int) -> None:
            table = self._files[place]
            file = open_table(table.path)
            refuse_absurd(table.path, file.metadata, keys)
            found = read_columns(table.path, file, table.rows, keys)
            for key, values in numbers.items():
                part = values[table.start : table.start + table.rows]
                part[...] = as_numbers(table.path, info, key, found[key])
            for key, parts in others.items():
                parts[place] = found[key]

        with ThreadPoolExecutor(min(8, usable_cores())) as threads:
            list(threads.map(decode, range(len(self._files))))
        for key, values in numbers.items():
            self._loaded[key] = Numbers(values)
        for key, parts in others.items():
            join = joined_texts if info.dtype(key) == "string" else joined_things
            self._loaded[key] = join(parts)

    def _empty(self, key: str) -> Array:
        """Return room for a column. Memory is used as it is filled, not on the word of a file."""
        try:
            return np.empty((self._rows, *number_shape(self._info, key)), self._info.dtype(key))
        except (MemoryError, ValueError):
            raise DatasetError(
                f"{self._files[0].path.parent}: {self._rows} rows of {key} do not fit into memory"
            ) from None
