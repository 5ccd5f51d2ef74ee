"""A dataset that is edited while it is read is refused; one that only grows is not."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from proctor import datasets
from proctor.datasets.edit.build import edit
from proctor.datasets.edit.destination import in_place_destination
from proctor.datasets.edit.operations import set_tasks
from proctor.datasets.format.tables import read_stats, write_stats
from proctor.datasets.format.tasks import write_tasks
from proctor.datasets.reader import open_handle
from proctor.datasets.stream import open_stream
from proctor.datasets.writer import DatasetWriter
from proctor.errors import DatasetError
from tests.refusals import refuses

NUMBER = {"dtype": "float32", "shape": [2], "names": None}
PICTURE = {"dtype": "image", "shape": [8, 8, 3], "names": ["height", "width", "channels"]}
FEATURES = {"observation.image": PICTURE, "observation.state": NUMBER, "action": NUMBER}
OPEN, CLOSE, PULL = "OPEN the drawer", "CLOSE the drawer", "PULL the drawer"


def record(root: Path, words: list[str], seed: int = 0, features: dict = FEATURES) -> Path:
    drawn = np.random.default_rng(seed)
    with DatasetWriter.create(root, fps=10, features=features) as writer:
        add_episodes(writer, words, drawn)
    return root


def add_episodes(writer: DatasetWriter, words: list[str], drawn: np.random.Generator) -> None:
    for task in words:
        for _ in range(5):
            frame = {
                "observation.image": drawn.integers(0, 255, (8, 8, 3)).astype(np.uint8),
                "observation.state": drawn.normal(size=2).astype(np.float32),
                "action": drawn.normal(size=2).astype(np.float32),
            }
            own = {key: frame[key] for key in writer.info.features if key in frame}
            writer.add_frame(own, task)
        writer.end_episode()


@pytest.fixture
def drawers(tmp_path: Path) -> Path:
    return record(tmp_path / "drawers", [OPEN, OPEN, CLOSE, CLOSE])


def rename_tasks(root: Path) -> None:
    """Give episodes 0 and 1 another task: CLOSE becomes task 0, and PULL task 1."""
    edit(root, in_place_destination(root), lambda source: set_tasks(source, {0: PULL, 1: PULL}))


def tasks_of(dataset) -> list[str]:
    return [dataset[5 * episode]["task"] for episode in range(4)]


def test_tasks_of_an_edited_dataset_are_not_mixed_up(drawers):
    dataset = datasets.open(drawers)
    rename_tasks(drawers)
    with refuses(DatasetError, "dataset.changed"):
        tasks_of(dataset)
    assert tasks_of(datasets.open(drawers)) == [PULL, PULL, CLOSE, CLOSE]


def test_a_loader_process_compares_with_what_its_parent_opened(drawers):
    handed_over = pickle.dumps(datasets.open(drawers))
    rename_tasks(drawers)
    with refuses(DatasetError, "dataset.changed"):
        pickle.loads(handed_over)[0]


def test_an_edit_between_two_columns_is_noticed(drawers):
    dataset = datasets.open(drawers)
    dataset.batch([0], ["observation.state"])
    rename_tasks(drawers)
    with refuses(DatasetError, "dataset.changed"):
        dataset.batch([0], ["observation.image"])  # a column that was not read yet
    assert dataset.batch([0], ["observation.state"])["task"] == [OPEN]  # read before the edit


def test_an_edit_between_metadata_and_frames_is_noticed(drawers):
    catalogue = open_handle(drawers)
    rename_tasks(drawers)
    with refuses(DatasetError, "dataset.changed"):
        catalogue.frames()[0]


def test_statistics_of_an_edited_dataset_are_not_taken(drawers, tmp_path):
    source = open_handle(drawers).source
    shutil.rmtree(drawers)
    record(drawers, [OPEN, OPEN, CLOSE, CLOSE], seed=1)
    with refuses(DatasetError, "dataset.changed"):
        _ = source.stats


def test_another_dataset_of_the_same_size_at_the_same_path_is_noticed(drawers, tmp_path):
    dataset = datasets.open(drawers)
    shutil.rmtree(drawers)
    record(drawers, [OPEN, OPEN, CLOSE, CLOSE], seed=1)
    with refuses(DatasetError, "dataset.changed"):
        dataset[0]


def test_a_table_that_is_written_over_is_noticed(drawers):
    dataset = datasets.open(drawers)
    (table,) = (drawers / "data").rglob("*.parquet")
    content = table.read_bytes()
    table.unlink()
    table.write_bytes(content)
    with refuses(DatasetError, "dataset.changed"):
        dataset[0]


def test_a_table_of_tasks_that_is_written_over_is_noticed(drawers):
    dataset = datasets.open(drawers)
    write_tasks(drawers, [CLOSE, OPEN])
    with refuses(DatasetError, "dataset.changed"):
        dataset[0]


def test_a_stream_notices_an_edit(drawers):
    stream = open_stream(drawers)
    rename_tasks(drawers)
    with refuses(DatasetError, "dataset.changed"):
        next(iter(stream))


@pytest.mark.parametrize("features", [FEATURES, {"action": NUMBER, "observation.state": NUMBER}])
def test_a_dataset_that_grows_while_it_is_read_is_read_on(tmp_path, features):
    root = record(tmp_path / "grows", [OPEN, CLOSE], features=features)
    expected = datasets.open(root).batch(range(10))
    dataset = datasets.open(root)
    writer = DatasetWriter.resume(root)
    add_episodes(writer, [PULL], np.random.default_rng(1))
    early = pickle.loads(pickle.dumps(dataset)).batch(range(10))
    writer.close()  # joins the files
    late = dataset.batch(range(10))
    for key in expected:
        np.testing.assert_array_equal(early[key], expected[key])
        np.testing.assert_array_equal(late[key], expected[key])


def test_statistics_that_are_worked_out_anew_are_no_edit(drawers):
    dataset = datasets.open(drawers)
    write_stats(drawers, read_stats(drawers))
    assert tasks_of(dataset) == [OPEN, OPEN, CLOSE, CLOSE]
