"""Notes on policies that were selected by the episodes that evaluate them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from proctor.report.run.selection import best_run_note, checkpoint_selection_note
from proctor.runs.journal import EpisodeRecord
from proctor.types import EpisodeSpec, Outcome, Task
from tests.run_folders import episode, write_run

STEPS = {100: 40.0, 200: 80.0, 300: 60.0}


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """Return a training whose three checkpoints were evaluated on ten episodes."""
    lines = [
        {"kind": "evaluation", "step": step, "pc_success": rate, "episodes": 10}
        for step, rate in STEPS.items()
    ]
    (tmp_path / "train.json").write_text("{}")
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step in STEPS:
        (tmp_path / f"checkpoints/{step:06d}/pretrained_model").mkdir(parents=True)
        write_run(tmp_path / f"eval/{step:06d}", rows(10))
    (tmp_path / "checkpoints/best").symlink_to("000200")
    return tmp_path


def rows(n: int, won: int = 5) -> list[EpisodeRecord]:
    ends = [Outcome.SUCCESS if index < won else Outcome.FAILURE for index in range(n)]
    return [episode(0, index, end) for index, end in enumerate(ends)]


def plan(first_seed: int, init_states: int = 0) -> list[EpisodeSpec]:
    row = episode(0, 0, Outcome.SUCCESS)
    task = Task(row.suite, row.task_id, row.task, "do it", 10, 10)
    return [
        EpisodeSpec(task, i, first_seed + i, i % init_states if init_states else None)
        for i in range(10)
    ]


def policy(training: Path, name: str) -> Path:
    return training / "checkpoints" / name / "pretrained_model"


@pytest.mark.parametrize("name", ["best", "000200"])
def test_the_best_checkpoint_on_the_episodes_that_chose_it_is_noted(
    training: Path, name: str
) -> None:
    first = rows(1)[0].seed
    note = checkpoint_selection_note(policy(training, name), plan(first + 4))
    assert note is not None
    assert "6 of 10 episodes selected this checkpoint as the best of 3" in note
    assert f"--seed={first + 14}" in note
    assert checkpoint_selection_note(policy(training, name), plan(first + 14)) is None


def test_another_checkpoint_and_another_folder_have_no_note(training: Path, tmp_path: Path) -> None:
    first = rows(1)[0].seed
    assert checkpoint_selection_note(policy(training, "000100"), plan(first)) is None
    (training / "train.json").unlink()
    assert checkpoint_selection_note(policy(training, "best"), plan(first)) is None


def test_a_single_evaluation_selects_nothing(training: Path) -> None:
    log = training / "log.jsonl"
    log.write_text(log.read_text().splitlines()[1])
    assert checkpoint_selection_note(policy(training, "best"), plan(rows(1)[0].seed)) is None


def test_no_seed_is_advised_where_the_starts_are_a_list(training: Path) -> None:
    listed = [replace(row, init_state=i, world=f"init {i}") for i, row in enumerate(rows(10))]
    write_run(training / "eval/000200", listed)
    note = checkpoint_selection_note(policy(training, "best"), plan(77_000, init_states=50))
    assert note is not None
    assert "every --seed has these starts" in note


def test_the_best_of_three_runs_is_noted_and_of_two_is_not() -> None:
    runs = [rows(10, won) for won in (3, 7, 5)]
    note = best_run_note(["a", "b", "c"], runs)
    assert note is not None
    assert note.startswith("b is the best of 3 on these episodes")
    assert f"--seed={runs[0][-1].seed + 1}" in note
    assert best_run_note(["a", "b"], runs[:2]) is None
    lost = [replace(row, outcome=Outcome.ERROR) for row in runs[0]]
    assert best_run_note(["a", "b", "c"], [lost, *runs[:2]]) is None
