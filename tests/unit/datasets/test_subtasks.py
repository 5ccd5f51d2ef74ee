"""The subtasks of LeRobot 0.4: words that a frame's ``subtask_index`` stands for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from proctor import datasets
from proctor.datasets.edit.build import build, edit
from proctor.datasets.edit.destination import new_destination
from proctor.datasets.edit.edit_plan import open_source
from proctor.datasets.edit.operations import delete, merge
from proctor.datasets.format.info_file import read_info
from proctor.errors import DatasetError, UsageError
from tests.refusals import refuses
from tests.unit.datasets.making import change, make_numbers

WORDS = ["reach", "grasp", "lift"]


def with_subtasks(root: Path, words: list[str], column: str = "subtask") -> Path:
    """Write a dataset whose frames have subtasks 0, 1, 2, 0 ..., as pandas would."""
    make_numbers(root, [3, 4], per_file=2)
    path = root / "data/chunk-000/file-000.parquet"
    numbers = pa.array([i % 3 for i in range(7)], pa.int64())
    pq.write_table(pq.read_table(path).append_column("subtask_index", numbers), path)
    entry = {"dtype": "int64", "shape": [1], "names": None}
    change(root, features={**read_info(root).features, "subtask_index": entry})
    table = {"subtask_index": list(range(len(words))), column: words}
    pq.write_table(pa.table(table), root / "meta/subtasks.parquet")
    return root


@pytest.mark.parametrize("column", ["subtask", "__index_level_0__"])
def test_a_frame_says_its_subtask(column: str, tmp_path: Path) -> None:
    ds = datasets.open(with_subtasks(tmp_path / "set", WORDS, column), episodes=[1])
    assert ds[0]["subtask"] == "reach"
    assert ds.batch([3, 1])["subtask"] == ["reach", "grasp"]
    assert "subtask" not in ds.batch([0], keys=["action"])


def test_without_the_words_the_number_is_all_there_is(tmp_path: Path) -> None:
    root = with_subtasks(tmp_path / "set", WORDS)
    (root / "meta/subtasks.parquet").unlink()
    item = datasets.open(root)[1]
    assert item["subtask_index"] == 1
    assert "subtask" not in item


def test_a_number_without_words_is_refused(tmp_path: Path) -> None:
    ds = datasets.open(with_subtasks(tmp_path / "set", WORDS[:2]))
    with refuses(DatasetError, "dataset.unknown-task") as refused:
        ds.batch([2])
    assert "subtask_index" in str(refused.value)


def test_a_column_that_numbers_nothing_is_refused(tmp_path: Path) -> None:
    root = with_subtasks(tmp_path / "set", WORDS)
    entry = {"dtype": "string", "shape": [1], "names": None}
    change(root, features={**read_info(root).features, "subtask_index": entry})
    with refuses(DatasetError, "dataset.invalid-info") as refused:
        datasets.open(root)
    assert "subtask_index" in str(refused.value)


def test_edits_keep_them_and_datasets_of_other_subtasks_are_not_merged(tmp_path: Path) -> None:
    root = with_subtasks(tmp_path / "set", WORDS)
    edit(root, new_destination(tmp_path / "fewer"), lambda source: delete(source, [0]))
    assert datasets.open(tmp_path / "fewer")[0]["subtask"] == "reach"
    both = merge([open_source(root), open_source(tmp_path / "fewer")])
    build(both, new_destination(tmp_path / "both"))
    assert datasets.open(tmp_path / "both")[8]["subtask"] == "grasp"
    other = with_subtasks(tmp_path / "other", [*WORDS[:2], "drop"])
    with refuses(UsageError, "dataset.sources-differ") as refused:
        merge([open_source(root), open_source(other)])
    assert "meta/subtasks.parquet" in str(refused.value)
