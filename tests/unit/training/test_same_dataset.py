"""A training is resumed with the dataset that it was started with, wherever that is now."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from .builders import FEATURES, RUN, SMALL_ACT, words, write_numbers

pytest.importorskip("torch")

from proctor.cli import main
from proctor.datasets.edit.build import edit
from proctor.datasets.edit.destination import in_place_destination
from proctor.datasets.edit.operations import delete, set_tasks
from proctor.datasets.format.tables import read_stats, write_stats
from proctor.datasets.reader import open_handle
from proctor.datasets.reading.identity import DatasetIdentity, identity_of
from proctor.datasets.writer import DatasetWriter

LENGTHS = (9, 7, 8)


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> tuple[Path, Path]:
    """Return a dataset and a training of two steps on it."""
    folder = tmp_path_factory.mktemp("begun")
    data = write_numbers(folder / "data", LENGTHS)
    assert main(["train", *words(data, folder / "run", SMALL_ACT, RUN, {"steps": 2})]) == 0
    return data, folder / "run"


@pytest.fixture
def copies(begun, tmp_path) -> tuple[Path, Path]:
    data, run = tmp_path / "elsewhere", tmp_path / "run"
    shutil.copytree(begun[0], data)
    shutil.copytree(begun[1], run, symlinks=True)
    return data, run


def resume(data: Path, run: Path, *more: str) -> int:
    flags = ["--resume", f"--output_dir={run}", f"--dataset.root={data}", "--steps=4", *more]
    return main(["train", *flags])


def refused(capsys) -> str:
    said: str = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def append(root: Path, episodes: int = 1) -> None:
    with DatasetWriter.resume(root) as writer:
        for _ in range(episodes):
            for _ in range(5):
                frame = {k: np.zeros(e["shape"], np.float32) for k, e in FEATURES.items()}
                writer.add_frame(frame, "task 0")
            writer.end_episode()


def test_a_dataset_that_was_moved_is_the_same(copies, capsys):
    assert resume(*copies) == 0
    assert "note" not in capsys.readouterr().err


def test_another_dataset_of_as_many_frames_is_refused(copies, capsys):
    data, run = copies
    shutil.rmtree(data)
    write_numbers(data, LENGTHS)
    with DatasetWriter.resume(data) as writer:  # one more episode, and the first one removed
        for at in range(LENGTHS[0]):
            frame = {k: np.full(e["shape"], at, np.float32) for k, e in FEATURES.items()}
            writer.add_frame(frame, "task 0")
        writer.end_episode()
    edit(data, in_place_destination(data), lambda source: delete(source, [0]))
    before = (run / "train.json").read_bytes()
    assert resume(data, run) == 2
    assert f"--policy.path={run}/checkpoints/000002/pretrained_model" in refused(capsys)
    assert (run / "train.json").read_bytes() == before


def test_appended_episodes_are_not_learnt_from_without_being_asked_for(copies, capsys):
    data, run = copies
    append(data, 2)
    assert resume(data, run) == 2
    assert "2 episodes" in refused(capsys)
    assert resume(data, run, "--dataset.episodes=[0,1,2]") == 0  # as it was


def test_a_training_from_before_identities_were_kept_is_resumed_with_a_note(copies, capsys):
    data, run = copies
    record = json.loads((run / "train.json").read_text())
    kept = record.pop("dataset")
    (run / "train.json").write_text(json.dumps(record))
    assert resume(data, run) == 0
    assert "note: " in capsys.readouterr().err
    assert json.loads((run / "train.json").read_text())["dataset"] == kept


def test_a_streamed_training_knows_its_dataset_too(copies, begun, tmp_path):
    data, run = copies
    streamed = {"dataset.streaming": "true", "steps": 2}
    shutil.rmtree(run)
    assert main(["train", *words(data, run, SMALL_ACT, RUN, streamed)]) == 0
    record, other = (json.loads((r / "train.json").read_text()) for r in (run, begun[1]))
    assert record["dataset"] == other["dataset"]
    append(data)
    assert resume(data, run) == 2


def identity(root: Path, episodes: int | None = None) -> DatasetIdentity:
    return identity_of(open_handle(root).source, episodes)


def test_what_differs_is_named(begun, tmp_path):
    known = identity(begun[0])
    for name, change in {
        "its tasks differ": lambda source: set_tasks(source, {0: "another"}),
        "it has 2 episodes instead of 3": lambda source: delete(source, [1]),
    }.items():
        data = tmp_path / name.replace(" ", "_")
        shutil.copytree(begun[0], data)
        edit(data, in_place_destination(data), change)
        assert known.differences(identity(data)) == [name]
    other = write_numbers(tmp_path / "lengths", (9, 8, 7))
    assert known.differences(identity(other)) == ["its episodes are of other lengths"]
    fewer = {key: entry for key, entry in FEATURES.items() if key != "observation.state"}
    assert known.differences(identity(write_numbers(tmp_path / "fewer", LENGTHS, fewer))) == [
        "its observation.state is gone"
    ]
    assert identity(tmp_path / "fewer").differences(known) == []  # a feature was added


def test_the_identity_is_of_the_contents(begun, tmp_path):
    known, data = identity(begun[0]), tmp_path / "data"
    shutil.copytree(begun[0], data)
    stats = read_stats(data)
    stats["action"]["std"] = stats["action"]["std"] * 1.01  # worked out otherwise
    write_stats(data, stats)
    assert identity(data) == known
    append(data)  # which lays the files anew, too
    assert identity(data) != known
    assert identity(data, 3) == known
