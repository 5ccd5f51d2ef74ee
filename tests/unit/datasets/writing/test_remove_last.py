"""The last episode of a writer can be removed; a kill leaves all of it or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proctor.datasets.writer as writer_module
from proctor.datasets.check import check
from proctor.datasets.reader import open as open_dataset
from proctor.datasets.writer import DatasetWriter
from proctor.errors import DatasetError

FEATURES = {"action": {"dtype": "float32", "shape": [2], "names": None}}


def add(writer: DatasetWriter, value: float, task: str = "push") -> None:
    writer.add_frame({"action": np.full(2, value, np.float32)}, task)
    writer.end_episode()


@pytest.fixture
def writer(tmp_path: Path) -> DatasetWriter:
    return DatasetWriter.create(tmp_path / "data", 10, FEATURES)


def values(root: Path) -> list[float]:
    dataset = open_dataset(root)
    return [float(dataset[i]["action"][0]) for i in range(len(dataset))]


def test_the_next_episode_takes_the_number_of_the_removed_one(writer: DatasetWriter) -> None:
    add(writer, 1)
    add(writer, 2, "another task")
    writer.remove_last_episode()
    assert writer.info.total_tasks == 1
    add(writer, 3)
    writer.close()
    assert values(writer.root) == [1, 3]
    assert not check(writer.root).findings


def test_the_only_episode_can_be_removed(writer: DatasetWriter) -> None:
    add(writer, 1)
    writer.remove_last_episode()
    assert writer.n_episodes == 0
    add(writer, 2)
    writer.close()
    assert values(writer.root) == [2]
    assert not check(writer.root).findings


def test_an_episode_of_another_session_or_a_second_one_is_not_removed(
    writer: DatasetWriter,
) -> None:
    add(writer, 1)
    add(writer, 2)
    writer.remove_last_episode()
    with pytest.raises(DatasetError) as error:
        writer.remove_last_episode()
    assert error.value.code == "dataset.nothing-to-remove"
    writer.release()
    resumed = DatasetWriter.resume(writer.root)
    with pytest.raises(DatasetError):
        resumed.remove_last_episode()
    resumed.release()
    assert values(writer.root) == [1]


@pytest.mark.parametrize(("killed_at", "left"), [("write_info", [1, 2]), ("write_stats", [1])])
def test_a_kill_leaves_the_whole_episode_or_nothing(
    writer: DatasetWriter, killed_at: str, left: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(writer, 1)
    add(writer, 2)

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer_module, killed_at, kill)
        with pytest.raises(KeyboardInterrupt):
            writer.remove_last_episode()
    writer.release()
    DatasetWriter.resume(writer.root).close()
    assert values(writer.root) == left
    assert not check(writer.root).findings
