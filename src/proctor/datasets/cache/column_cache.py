"""Memory for decoded columns: RAM, or memory-mapped files if they are large.

The files are in an entry of the cache folder (``folder.py``), so processes share them, and they are
listed and cleared with the cache. Each file appears atomically, with a digest in its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.cache.folder import (
    CacheEntryHandle,
    CacheEntryInfo,
    file_identity,
    open_entry,
)
from proctor.datasets.cache_settings import FrameCacheSettings
from proctor.datasets.format.arrow import pa
from proctor.errors import DatasetError
from proctor.features import Array
from proctor.system import caches

IN_MEMORY = 2**30
"""Largest size of columns in RAM, in bytes; larger ones are memory-mapped."""


@dataclass(frozen=True)
class ColumnGroup:
    """Columns that are decoded together."""

    files: tuple[Path, ...]
    """Data files that they are decoded from."""
    shapes: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    """Numeric column -> its whole shape and dtype."""
    nbytes: int
    """Estimated size in bytes."""

    @property
    def key(self) -> str:
        """Name of the cache entry: a hash of everything that the columns depend on."""
        told = hashlib.sha256(repr(sorted(self.shapes.items())).encode())
        for path in self.files:
            told.update(f"{path.absolute()} {file_identity(path)}\n".encode())
        return told.hexdigest()[:24]


class ColumnCache:
    """Decides where columns are stored, and opens their cache entries."""

    def __init__(self, dataset: str, settings: FrameCacheSettings) -> None:
        self._dataset, self._settings = dataset, settings

    def takes(self, plan: ColumnGroup) -> bool:
        """Tell whether columns are too large for RAM and belong in the cache folder."""
        return plan.nbytes > IN_MEMORY and not self._settings.is_decoded_into_ram

    def entry(self, what: str, plan: ColumnGroup) -> CacheEntryHandle:
        """Open the cache entry of columns."""
        rows = max((shape[0] for shape, _ in plan.shapes.values()), default=0)
        card = CacheEntryInfo(self._dataset, what, (len(plan.shapes), rows, 1), rows, plan.nbytes)
        return open_entry(self._settings.folder, plan.key, card, self._settings.most_bytes)


def allocate_in_memory(plan: ColumnGroup) -> dict[str, Array]:
    """Allocate arrays in RAM; pages are used only when they are filled."""
    try:
        return {key: np.empty(shape, dtype) for key, (shape, dtype) in plan.shapes.items()}
    except (MemoryError, ValueError):
        raise DatasetError(
            f"{plan.files[0].parent}: the numbers of its frames ({plan.nbytes} bytes) do not fit "
            "into memory",
            code="dataset.out-of-memory",
        ) from None


def map_cached(folder: Path, plan: ColumnGroup) -> dict[str, Array] | None:
    """Memory-map numeric columns from the disk; return None if one is missing or damaged."""
    found = {}
    for name, key in _names(plan):
        path = caches.find(folder, _key(folder, name), ".npy")
        try:
            values = None if path is None else np.load(path, mmap_mode="r")
        except (OSError, ValueError):
            return None
        if values is None:
            return None
        shape, dtype = plan.shapes[key]
        if values.shape != shape or values.dtype != dtype:
            return None
        found[key] = values
    return found


def allocate_on_disk(folder: Path, plan: ColumnGroup) -> dict[str, Array]:
    """Allocate arrays in unfinished files; ``publish`` gives them their names."""
    made: dict[str, Array] = {}
    try:
        for name, key in _names(plan):
            shape, dtype = plan.shapes[key]
            made[key] = np.lib.format.open_memmap(_part(folder, name), "w+", dtype, shape)
            _take_room(_part(folder, name))
    except OSError as error:
        with removing_unfinished(folder, plan):
            raise _full(folder, error) from None
    return made


def _take_room(path: Path) -> None:
    """Reserve the disk space of a file: a full disk kills a process that writes to a mapping.

    Raises:
        OSError: there is not enough space.
    """
    if sys.platform == "linux":
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def publish(folder: Path, plan: ColumnGroup, columns: Mapping[str, Array]) -> dict[str, Array]:
    """Give filled columns their final names, and return them for reading."""
    try:
        for name, key in _names(plan):
            values = columns[key]
            assert isinstance(values, np.memmap)
            values.flush()
            caches.publish(_part(folder, name), _key(folder, name), ".npy")
    except OSError as error:
        raise _full(folder, error) from None
    found = map_cached(folder, plan)
    if found is None:
        raise DatasetError(
            f"{folder} was removed while it was filled; try again", code="cache.removed"
        )
    return found


@contextlib.contextmanager
def removing_unfinished(folder: Path, plan: ColumnGroup) -> Iterator[None]:
    """Remove the unfinished files of columns if the block raises."""
    try:
        yield
    finally:
        for name, _ in _names(plan):
            _part(folder, name).unlink(missing_ok=True)


def images_on_disk(folder: Path, number: int, batches: Iterator[pa.Array]) -> list[pa.Array]:
    """Write the images of data file ``number`` if they are missing, and memory-map them."""
    key = _key(folder, f"pictures-{number}")
    path = caches.find(folder, key, ".arrow")
    if path is None:
        part = _part(folder, key)
        schema = pa.schema([("bytes", pa.large_binary())])
        try:
            with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for batch in batches:
                    writer.write_batch(pa.record_batch([batch], schema=schema))
            path = caches.publish(part, key, ".arrow")
        except OSError as error:
            part.unlink(missing_ok=True)
            raise _full(folder, error) from None
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    return [reader.get_batch(i).column(0) for i in range(reader.num_record_batches)]


def _names(plan: ColumnGroup) -> Sequence[tuple[str, str]]:
    return [(f"column-{i}", key) for i, key in enumerate(plan.shapes)]


def _key(folder: Path, name: str) -> str:
    return f"{folder.name}-{name}"


def _part(folder: Path, name: str) -> Path:
    return folder / f"{name}.{os.getpid()}.part"


def _full(folder: Path, error: OSError) -> DatasetError:
    return DatasetError(
        f"{folder}: decoded columns cannot be cached there ({error.strerror or error}); free "
        "space, or choose another folder with --dataset.cache_dir",
        code="cache.not-writable",
    )
