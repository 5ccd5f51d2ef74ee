"""Processes decode the images of data files into a cache; what they cannot decode is an error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from proctor import datasets
from proctor.datasets.cache_settings import CacheKind, FrameCacheSettings
from proctor.datasets.reading import cached
from proctor.datasets.reading.dataset import Dataset
from proctor.datasets.writer import DatasetWriter
from proctor.errors import DatasetError
from tests.refusals import refuses

pytest.importorskip("av", reason="PyAV is not installed (proctor[dataset])")

KEY = "observation.images.top"
LENGTHS = (5, 3, 8)


def write_images(root: Path) -> Path:
    entry = {"dtype": "image", "shape": [8, 10, 3], "names": ["height", "width", "channels"]}
    writer = DatasetWriter.create(root, fps=10, features={KEY: entry})
    drawn = np.random.default_rng(0)
    for length in LENGTHS:
        for _ in range(length):
            writer.add_frame({KEY: drawn.integers(0, 256, (8, 10, 3), dtype=np.uint8)}, "look")
        writer.end_episode()
    writer.close()
    return root


def opened(root: Path, kind: str = "ram") -> Dataset:
    settings = FrameCacheSettings(CacheKind(kind), 1.0, str(root.parent / "cache"))
    return datasets.open("me/images", root=root, cache=settings)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "_WORTH_PROCESSES", 2)
    monkeypatch.setattr(cached, "_FRAMES_WORTH_PROCESSES", 1)
    monkeypatch.setattr(cached, "_SHARD_BYTES", 5 * 8 * 10 * 3)
    monkeypatch.setattr(cached, "usable_cores", lambda: 2)


def test_processes_decode_what_this_one_then_need_not(tmp_path, monkeypatch, processes):
    root, frames = write_images(tmp_path / "data"), list(range(sum(LENGTHS)))
    expected = opened(root, "off").batch(frames)[KEY]
    heard: list[int] = []
    dataset = opened(root)

    def refuse(*_: object) -> None:
        raise AssertionError("this process decodes, too")

    with monkeypatch.context() as patched:
        patched.setattr("proctor.datasets.reading.frame_source.decode_images", refuse)
        dataset.fill_cache(lambda _, done, total: heard.append(total - done))
        np.testing.assert_array_equal(dataset.batch(frames)[KEY], expected)
    assert heard == sorted(heard, reverse=True)


def test_an_image_that_no_process_can_decode_is_an_error_here(tmp_path, processes):
    root = write_images(tmp_path / "data")
    (data,) = root.glob("data/**/*.parquet")
    data.write_bytes(data.read_bytes().replace(b"IDAT", b"NONE"))
    with refuses(DatasetError, "dataset.damaged-image"):
        opened(root).fill_cache()
