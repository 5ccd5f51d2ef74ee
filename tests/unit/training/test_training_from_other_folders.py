"""Trainings are resumed from any folder, with the dataset that they began with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .builders import RUN, SMALL_ACT, words, write_numbers

pytest.importorskip("torch")

from proctor.cli import main
from proctor.system.hub import repositories as hub


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder to work in, with a dataset whose path could be a Hub id."""
    (tmp_path / "elsewhere").mkdir()
    project = tmp_path / "project"
    write_numbers(project / "data/numbers", (9, 7, 8))
    monkeypatch.chdir(project)

    def never(*args, **kwargs):
        raise AssertionError("the Hub was asked")

    for name in ("download", "revisions"):
        monkeypatch.setattr(hub, name, never)
        monkeypatch.setattr(f"proctor.datasets.source.{name}", never)
    return project


def start(root: str, *more: str) -> int:
    flags = words(Path(root), Path("out"), SMALL_ACT, RUN, {"steps": 2})
    return main(["train", *(word for word in flags if "repo_id" not in word), *more])


def test_a_training_is_resumed_from_another_folder(project, monkeypatch):
    assert start("data/numbers") == 0
    monkeypatch.chdir(project.parent / "elsewhere")
    assert main(["train", "--resume", f"--output_dir={project / 'out'}", "--steps=4"]) == 0
    record = json.loads((project / "out/train.json").read_text())
    assert record["given"]["dataset.root"] == "data/numbers", "what was typed is kept"
    assert record["paths"]["dataset.root"]["absolute"] == str(project / "data/numbers")


def test_a_training_that_moves_with_its_dataset_finds_it(project, monkeypatch):
    assert start("data/numbers") == 0
    moved = project.parent / "elsewhere/project"
    project.rename(moved)
    monkeypatch.chdir(moved.parent)
    assert main(["train", "--resume", f"--output_dir={moved / 'out'}", "--steps=4"]) == 0


@pytest.mark.parametrize("repo_id", [[], ["--dataset.repo_id=data/numbers"]])
def test_a_dataset_that_is_not_there_is_not_looked_for_on_the_hub(project, capsys, repo_id):
    assert start("data/numbers_2", *repo_id) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--dataset.root: {project / 'data/numbers_2'} does not exist" in line
    assert start("data/numbers", *repo_id) == 0
    Path("data/numbers").rename("data/renamed")
    capsys.readouterr()
    resume = ["train", "--resume", "--output_dir=out", "--steps=4"]
    assert main(resume) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--dataset.root: {project / 'data/numbers'} does not exist any more" in line
    assert main([*resume, "--dataset.root=data/renamed"]) == 0


def test_a_finetuned_policy_resumes_without_the_checkpoint_that_it_began_with(project):
    assert start("data/numbers") == 0
    base = Path("out/checkpoints/000002/pretrained_model")
    flags = words(Path("data/numbers"), Path("fine"), RUN, {"steps": 2, "policy.path": base})
    assert main(["train", *flags]) == 0
    base.rename("elsewhere")
    assert main(["train", "--resume", "--output_dir=fine", "--steps=4"]) == 0
