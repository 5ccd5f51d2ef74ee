"""The columns of a dataset's frames, decoded on first use."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from proctor.datasets.cache.column_cache import (
    ColumnCache,
    ColumnGroup,
    allocate_in_memory,
    allocate_on_disk,
    images_on_disk,
    map_cached,
    publish,
    removing_unfinished,
)
from proctor.datasets.cache.folder import CacheEntryHandle
from proctor.datasets.format.arrow import pa, pc
from proctor.datasets.format.info import Info
from proctor.datasets.format.tables import (
    UNREADABLE,
    damaged_table_error,
    open_table,
    refuse_oversized,
)
from proctor.datasets.numbers.columns import (
    Column,
    NumericColumn,
    TableFile,
    check_columns,
    check_length,
    column_to_array,
    concat_objects,
    concat_texts,
    image_bytes,
    number_shape,
    read_columns,
)
from proctor.errors import DatasetError
from proctor.features import Array
from proctor.system.platform.platform_info import usable_cores

_Given: TypeAlias = tuple[Info, Sequence[TableFile], ColumnCache | None, Callable[[], None] | None]
_NOT_NUMBERS = ("string", "language", "image")
_GROWTH = 100
"""Largest ratio of image bytes to file bytes."""


class FrameColumns:
    """The columns of several data files, concatenated: ``columns[key].take(rows)``."""

    def __init__(
        self,
        info: Info,
        files: Sequence[TableFile],
        shelf: ColumnCache | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Store the files without decoding; ``check`` runs after reading, and may raise."""
        self._given = info, files, shelf, check
        self._begin()

    def __getstate__(self) -> _Given:
        return self._given

    def __setstate__(self, state: _Given) -> None:
        self._given = state
        self._begin()

    def _begin(self) -> None:
        self._info, self._files, self._shelf, self._check = self._given
        self._loaded: dict[str, Column] = {}
        self._lock = threading.Lock()
        self._where = self._files[0].path.parent if self._files else Path()
        self._rows = self._files[-1].start + self._files[-1].rows if self._files else 0

    def __getitem__(self, key: str) -> Column:
        """Return a column."""
        if key not in self._loaded:
            with self._lock:
                if key not in self._loaded:
                    self._load(key)
        if key not in self._loaded:
            raise DatasetError(
                f"{self._where}: meta/info.json does not name the column {key}",
                code="dataset.unknown-feature",
            )
        return self._loaded[key]

    def read_images(self, key: str, rows: Array) -> list[Any]:
        """Return encoded images, read from their files; nothing is kept in memory."""
        starts = np.array([table.start for table in self._files])
        of_file = np.searchsorted(starts, rows, side="right") - 1
        found: list[Any] = [None] * len(rows)
        for number in np.unique(of_file).tolist():
            places, table = np.flatnonzero(of_file == number), self._files[number]
            images = _read_table_images(table, key, rows[places] - table.start)
            for place, image in zip(places.tolist(), images, strict=True):
                found[place] = image
        if self._check is not None:
            self._check()
        return found

    def _load(self, key: str) -> None:
        """Decode one image column, or all other columns at once."""
        found = self._decoded(key)
        if self._check is not None:
            self._check()
        self._loaded |= found

    def _decoded(self, key: str) -> dict[str, Column]:
        images = self._info.image_keys
        if key in images:
            return {key: concat_objects(self._where, self._pictures(key))}
        keys = [k for k in self._info.columns if k not in images]
        numbers = [k for k in keys if self._info.dtype(k) not in _NOT_NUMBERS]
        found: dict[str, Column] = {k: NumericColumn(v) for k, v in self._numbers(numbers).items()}
        others = [k for k in keys if k not in numbers]
        if others:
            parts = self._each(lambda table: _open_columns(table, others))
            for other in others:
                join = concat_texts if self._info.dtype(other) == "string" else concat_objects
                chunks = (chunk for part in parts for chunk in part[other].chunks)
                found[other] = join(self._where, chunks)
        return found

    def _each(self, decode: Callable[[TableFile], Any]) -> list[Any]:
        with ThreadPoolExecutor(min(8, usable_cores())) as threads:
            return list(threads.map(decode, self._files))

    def _numbers(self, keys: Sequence[str]) -> dict[str, Array]:
        info = self._info
        shapes = {
            key: ((self._rows, *number_shape(info, key)), np.dtype(info.dtype(key))) for key in keys
        }
        nbytes = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in shapes.values())
        plan = ColumnGroup(tuple(table.path for table in self._files), shapes, nbytes)
        entry = self._entry("numbers", plan)
        found = None if entry is None else map_cached(entry.folder, plan)
        if found is not None:
            return found
        columns = (
            allocate_in_memory(plan) if entry is None else allocate_on_disk(entry.folder, plan)
        )

        def fill(table: TableFile) -> None:
            read = _open_columns(table, keys)
            for key, values in columns.items():
                part = values[table.start : table.start + table.rows]
                part[...] = column_to_array(table.path, info, key, read[key])

        if entry is None:
            self._each(fill)
            return columns
        with removing_unfinished(entry.folder, plan):
            self._each(fill)
            return publish(entry.folder, plan, columns)

    def _pictures(self, key: str) -> Iterator[pa.Array]:
        """Yield an image column as encoded bytes."""
        paths = tuple(table.path for table in self._files)
        sizes = sum(path.stat().st_size for path in paths if path.exists())
        shapes = {key: ((self._rows,), np.dtype(object))}
        entry = self._entry(f"{key} (files)", ColumnGroup(paths, shapes, sizes))
        for number, table in enumerate(self._files):
            parts = _table_pictures(table, key)
            if entry is None:
                yield from parts
            else:
                dense = (_dense(table, part) for part in parts)
                yield from images_on_disk(entry.folder, number, dense)

    def _entry(self, what: str, plan: ColumnGroup) -> CacheEntryHandle | None:
        if self._shelf is None or not self._shelf.takes(plan):
            return None
        self._each(check_length)  # before memory is allocated by the untrusted meta/episodes
        entry = self._shelf.entry(what, plan)
        weakref.finalize(self, entry.lock.release)  # mapped files stay valid until then
        return entry


def _open_columns(table: TableFile, keys: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    file = open_table(table.path)
    refuse_oversized(table.path, file.metadata, keys)
    return read_columns(table, file, keys)


def _table_pictures(table: TableFile, key: str) -> Iterator[pa.Array]:
    """Yield the images of one data file, row group by row group."""
    file = open_table(table.path)
    refuse_oversized(table.path, file.metadata, [key])
    left = table.rows
    check_columns(table, file, [key])
    for group in range(file.num_row_groups):
        try:
            column = file.read_row_group(group, columns=[key], use_threads=False)[key]
        except UNREADABLE as error:
            raise damaged_table_error(table.path, error) from None
        for chunk in column.slice(0, left).chunks:
            left -= len(chunk)
            yield image_bytes(table.path, key, chunk)


def _read_table_images(table: TableFile, key: str, rows: Array) -> list[Any]:
    """Return images of one data file; only their row groups are read."""
    file = open_table(table.path)
    refuse_oversized(table.path, file.metadata, [key])
    check_columns(table, file, [key])
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    ends = np.cumsum(sizes)
    groups = np.unique(np.searchsorted(ends, rows, side="right"))
    try:
        columns = [file.read_row_group(group, [key], use_threads=False)[key] for group in groups]
    except UNREADABLE as error:
        raise damaged_table_error(table.path, error) from None
    chunks = (image_bytes(table.path, key, chunk) for column in columns for chunk in column.chunks)
    read = np.concatenate([np.arange(ends[group] - sizes[group], ends[group]) for group in groups])
    images: list[Any] = concat_objects(table.path, chunks).take(np.searchsorted(read, rows))
    return images


def _dense(table: TableFile, part: pa.Array) -> pa.Array:
    """Return images without dictionary encoding."""
    if not pa.types.is_dictionary(part.type):
        return part.cast(pa.large_binary())
    lengths = pc.binary_length(part.dictionary).take(part.indices)
    size = table.path.stat().st_size
    if (pc.sum(lengths).as_py() or 0) > _GROWTH * size:
        raise DatasetError(
            f"{table.path} is damaged: one image is repeated too often",
            code="dataset.damaged-file",
        )
    return part.dictionary.cast(pa.large_binary()).take(part.indices)
