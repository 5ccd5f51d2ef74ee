"""``proctor plan`` as a user meets it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.commands.evaluation.plan import PlanCommand
from proctor.errors import UsageError
from proctor.types import Outcome
from tests.refusals import refuses
from tests.run_folders import RECORD, episode, write_run


def plan(*words: str) -> None:
    command = PlanCommand.parse("proctor plan", words)
    assert command is not None
    assert command.run() == 0


def a_run(folder: Path, solved: int, *, n: int = 20) -> Path:
    outcomes = [Outcome.SUCCESS] * solved + [Outcome.FAILURE] * (n - solved)
    rows = [episode(task, i, outcome) for task in (0, 1) for i, outcome in enumerate(outcomes)]
    return write_run(folder, rows, replace(RECORD, planned_episodes=2 * n))


def test_a_difference_is_planned_for_other_seeds_and_for_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "--difference=0.2", "--agreement=0.75"]) == 0
    question, independent, paired = capsys.readouterr().out.splitlines()
    assert "20 points, 50.0% against 70.0%" in question
    assert independent.split()[0] == "102"
    assert paired.split()[0] == "50"


def test_a_width_is_planned_at_a_rate_and_for_any_rate(capsys: pytest.CaptureFixture[str]) -> None:
    plan("--width=0.1", "--rate=0.9")
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert shown == ["141", "381"]


def test_two_runs_give_rate_difference_agreement_tasks_and_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = a_run(tmp_path / "a", 10), a_run(tmp_path / "b", 15)
    plan(f"--run={a},{b}")
    question, independent, paired, times = capsys.readouterr().out.splitlines()
    assert "25 points, 50.0% against 75.0%" in question
    assert "of each of 2 tasks) in " in independent
    assert "75.0% of the pairs end alike, as in 40 pairs" in paired
    assert "starts/s" in times


def test_one_run_gives_the_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan(f"--run={a_run(tmp_path / 'a', 18)}", "--width=0.1", "--tasks=1")
    assert "success rate of 90.0%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], "flag.missing"),
        (["--difference=0"], "flag.out-of-range"),
        (["--difference=nan"], "flag.out-of-range"),
        (["--difference=0.6"], "flag.out-of-range"),
        (["--difference=much"], "flag.invalid-value"),
        (["--width=0.1", "--difference=0.1"], "flag.conflict"),
        (["--difference=0.1", "--agreement=0.95"], "flag.out-of-range"),
        (["--difference=0.1", "--power=1"], "flag.out-of-range"),
        (["--difference=0.1", "--tasks=0"], "flag.out-of-range"),
        (["--difference=0.1", "--run=a,b,c"], "flag.invalid-value"),
        (["--difference=0.1", "--run=nowhere"], "run.not-found"),
        (["--difference=0.1", "more"], "argument.count"),
    ],
)
def test_a_wrong_question_is_refused(words: list[str], code: str) -> None:
    with refuses(UsageError, code):
        plan(*words)


def test_two_equal_runs_ask_for_the_difference(tmp_path: Path) -> None:
    a, b = a_run(tmp_path / "a", 10), a_run(tmp_path / "b", 10)
    with refuses(UsageError, "flag.missing"):
        plan(f"--run={a},{b}")
