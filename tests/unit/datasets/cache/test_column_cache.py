"""Columns that are too large for memory are decoded once, into files that are mapped."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from proctor import datasets
from proctor.datasets.cache.folder import list_entries
from proctor.datasets.cache_settings import FrameCacheSettings
from proctor.errors import DatasetError
from tests.refusals import refuses
from tests.unit.datasets.making import GOLDEN, assert_same, copied, make_numbers


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrameCacheSettings:
    """A cache for columns that are all too large for memory."""
    monkeypatch.setattr("proctor.datasets.cache.column_cache.IN_MEMORY", 0)
    return FrameCacheSettings(cache_dir=str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["video3ep", "image1ep"])
def test_columns_too_large_for_memory_are_mapped(
    name: str, tmp_path: Path, on_disk: FrameCacheSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = datasets.open(GOLDEN / name).batch(range(5))
    root = copied(name, tmp_path / "set")
    ds = datasets.open(root, cache=on_disk)
    assert_same(ds.batch(range(5)), before)
    assert_same(pickle.loads(pickle.dumps(ds)).batch(range(5)), before)
    entries = list_entries(on_disk.folder)
    assert len(entries) == (2 if name == "image1ep" else 1)
    assert all(entry.in_use and entry.nbytes for entry in entries)
    assert not list(on_disk.folder.rglob("*.part"))
    # they are not decoded again
    monkeypatch.setattr("proctor.datasets.numbers.store.column_to_array", None)
    monkeypatch.setattr("proctor.datasets.numbers.store._dense", None)
    assert_same(datasets.open(root, cache=on_disk).batch(range(5)), before)


def test_mapped_columns_of_a_table_that_was_changed_are_not_used(
    tmp_path: Path, on_disk: FrameCacheSettings
) -> None:
    root = make_numbers(tmp_path / "set", [4])
    datasets.open(root, cache=on_disk)[0]
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    at = table.column_names.index("next.reward")
    pq.write_table(table.set_column(at, "next.reward", pa.array([7.0] * 4, pa.float32())), path)
    assert datasets.open(root, cache=on_disk)[0]["next.reward"] == 7.0


def test_a_disk_without_room_for_columns_is_one_line_and_no_bus_error(
    tmp_path: Path, on_disk: FrameCacheSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is taken before the mapping is written to: a kernel that finds none then kills."""

    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    root = copied("video3ep", tmp_path / "set")
    with monkeypatch.context() as patched:
        patched.setattr("os.posix_fallocate", full)
        with refuses(DatasetError, "cache.not-writable"):
            datasets.open(root, cache=on_disk).batch(range(5))
    assert not list(on_disk.folder.rglob("*.part"))
    assert_same(
        datasets.open(root, cache=on_disk).batch(range(5)), datasets.open(root).batch(range(5))
    )
