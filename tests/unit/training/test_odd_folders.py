"""Folders whose path is not UTF-8, and folders that a killed training left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .builders import RUN, SMALL_ACT, words

pytest.importorskip("torch")

from proctor.cli import main
from proctor.errors import UsageError
from proctor.runs.training import RECORD_FILE, read_training
from proctor.system.files import require_utf8
from tests.refusals import refuses

SHORT = RUN | {"steps": 2}


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Return a path that is not UTF-8, in an empty folder."""
    return Path(os.fsdecode(os.fsencode(tmp_path / "odd") + b"/x\xff"))


def test_a_path_that_is_not_utf8_is_refused(odd: Path, monkeypatch, tmp_path: Path) -> None:
    with refuses(UsageError, "path.not-utf8"):
        require_utf8(odd)
    odd.mkdir(parents=True)
    monkeypatch.chdir(odd)
    with refuses(UsageError, "path.not-utf8"):
        require_utf8(Path("run"))
    require_utf8(tmp_path / "größe")


@pytest.mark.parametrize(
    "verb",
    [
        ["delete", "{0}", "--episodes=0"],
        ["merge", "{0}", "{0}"],
        ["split", "{0}", "--splits={{a: 0.5, b: 0.5}}"],
        ["set-task", "{0}", "--task=t"],
        ["stats", "{0}"],
    ],
    ids=lambda verb: verb[0],
)
def test_an_edit_into_such_a_folder_is_one_line_and_leaves_nothing(
    verb: list[str], numbers: Path, odd: Path, capfd
) -> None:
    given = [word.format(numbers) for word in verb]
    assert main(["data", *given, f"--output={odd}"]) == 2
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert "not UTF-8" in said[0]
    assert not odd.parent.exists()


def test_a_dataset_in_such_a_folder_is_one_line(odd: Path, capfd) -> None:
    odd.mkdir(parents=True)
    assert main(["data", "info", str(odd)]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_a_training_in_such_a_folder_is_refused_before_it_starts(
    numbers: Path, odd: Path, capfd
) -> None:
    assert main(["train", *words(numbers, odd, SMALL_ACT, SHORT)]) == 2
    online = ["--env.type=fake", "--policy.type=gaussian_actor", "--policy.device=cpu"]
    assert main(["train-online", *online, f"--output_dir={odd}"]) == 2
    said = capfd.readouterr().err.splitlines()
    assert sum("not UTF-8" in line for line in said) == 2
    assert not odd.parent.exists()


def test_a_record_from_such_a_folder_is_read_once_the_folder_has_another_name(
    numbers: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert main(["train", *words(numbers, run, SMALL_ACT, SHORT)]) == 0
    record = run / RECORD_FILE
    record.write_text(record.read_text().replace(str(numbers), f"{numbers}\\udcff"))
    found = read_training(run)
    assert found is not None
    assert "\udcff" in found.given["dataset.root"]


@pytest.mark.parametrize("left", [".train.json.123.part", ".report.html.123.part"])
def test_what_a_killed_training_left_is_removed_and_no_reason_to_refuse(
    numbers: Path, tmp_path: Path, left: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / left).write_text("half")
    assert main(["train", *words(numbers, run, SMALL_ACT, SHORT)]) == 0
    assert not list(run.glob(".*.part"))
    (run / left).write_text("half")
    assert main(["train", "--resume", f"--output_dir={run}", "--steps=4"]) == 0
    assert not list(run.glob(".*.part"))


def test_a_file_of_the_user_is_still_a_reason(numbers: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "notes.txt").write_text("mine")
    assert main(["train", *words(numbers, run, SMALL_ACT, SHORT)]) == 2
    assert (run / "notes.txt").read_text() == "mine"
