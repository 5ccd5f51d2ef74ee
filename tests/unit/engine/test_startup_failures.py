"""A task whose simulator cannot be opened ends the run early, with one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor import cli
from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim
from proctor.engine.processes.startup_failures import StartupFailures
from proctor.errors import SimulatorUnavailable
from proctor.evaluation.run import Evaluation
from proctor.runs.journal import read_journal
from proctor.types import EpisodeResult, EpisodeSpec, Outcome, Task

MISSING = "ModuleNotFoundError: No module named 'packaging'"


class NotInstalled(Fake):
    """Task 0 opens; the others need a missing package, unless ``MENDED`` is set."""

    def make_sim(self, task: Task) -> FakeSim:
        if task.task_id > 0 and "MENDED" not in os.environ:
            raise ModuleNotFoundError("No module named 'packaging'")
        return super().make_sim(task)


NOT_INSTALLED = BenchmarkPlugin(FakeConfig, NotInstalled, "lacks a package")


def errored(task_id: int, index: int, reason: str = MISSING) -> EpisodeResult:
    task = Task("suite", task_id, f"task-{task_id}", "", 10, 10)
    return EpisodeResult(EpisodeSpec(task, index, index), Outcome.ERROR, error=reason)


def evaluate(folder: Path, *flags: str) -> int:
    return cli.main(
        ["eval", "--policy.type=expert",
         "--env.type=tests.unit.engine.test_startup_failures:NOT_INSTALLED",
         "--eval.n_episodes=30", "--eval.batch_size=2", f"--output_dir={folder}", *flags]
    )  # fmt: skip


@pytest.mark.parametrize("in_process", [False, True])
def test_a_task_that_never_opens_ends_the_run_with_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], in_process: bool
) -> None:
    code = evaluate(
        tmp_path / "run", "--env.n_tasks=2", f"--eval.use_async_envs={str(not in_process).lower()}"
    )
    lines = capsys.readouterr().err.splitlines()
    assert code == 1
    assert [line for line in lines if "packaging" in line] == [lines[-1]]
    assert "point-1" in lines[-1]
    assert MISSING in lines[-1]
    assert "Traceback" in (tmp_path / "run" / "workers.log").read_text()
    assert all(row.outcome is Outcome.SUCCESS for row in read_journal(tmp_path / "run").rows)


def test_a_run_that_ended_so_goes_on_once_the_cause_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process = "--eval.use_async_envs=false"
    assert evaluate(tmp_path / "run", "--env.n_tasks=2", in_process) == 1
    monkeypatch.setenv("MENDED", "yes")
    assert evaluate(tmp_path / "run", "--resume", "--env.n_tasks=2", in_process) == 0
    assert len(read_journal(tmp_path / "run").rows) == 60


def test_many_tasks_of_one_episode_that_never_open_end_the_run_too(
    run: Callable[..., Evaluation],
) -> None:
    lacking: dict[str, Any] = {"env__type": "tests.unit.engine.test_startup_failures:NOT_INSTALLED"}
    with pytest.raises(SimulatorUnavailable) as refused:
        run(**lacking, env__n_tasks=20, eval__n_episodes=1, eval__batch_size=2)
    assert "packaging" in str(refused.value)


def test_one_task_of_one_episode_that_cannot_be_opened_is_an_error_beside_the_others(
    run: Callable[..., Evaluation],
) -> None:
    lacking: dict[str, Any] = {"env__type": "tests.unit.engine.test_startup_failures:NOT_INSTALLED"}
    evaluation = run(**lacking, env__n_tasks=2, eval__n_episodes=1)
    assert [row.outcome is Outcome.ERROR for row in evaluation.rows] == [False, True]


def test_errors_of_a_task_are_held_back_only_until_it_opens() -> None:
    startup_failures = StartupFailures()
    first, second = errored(0, 0), errored(0, 1)
    assert startup_failures.failed(first) == []
    assert startup_failures.failed(second) == []
    assert startup_failures.opened(("suite", 0)) == [first, second]
    third = errored(0, 2)
    assert startup_failures.failed(third) == [third]
    assert startup_failures.release_all() == []


def test_episodes_of_a_task_that_opened_later_do_not_count_against_another() -> None:
    startup_failures = StartupFailures()
    for index in range(2):
        startup_failures.failed(errored(0, index))
    startup_failures.opened(("suite", 0))
    for index in range(2):
        startup_failures.failed(errored(1, index))
    with pytest.raises(SimulatorUnavailable) as refused:
        startup_failures.failed(errored(1, 2))
    assert "task-1" in str(refused.value)


def test_reasons_that_differ_are_no_reason_to_end() -> None:
    startup_failures = StartupFailures()
    told = [startup_failures.failed(errored(0, i, f"OSError: {chr(97 + i)}")) for i in range(12)]
    assert [len(results) for results in told] == [0] * 10 + [11, 0]
    assert len(startup_failures.release_all()) == 1


def test_a_reason_that_differs_in_numbers_only_is_the_same() -> None:
    startup_failures = StartupFailures()
    for index in range(2):
        startup_failures.failed(errored(0, index, f"Traceback\nOSError: at 0x{index}f"))
    with pytest.raises(SimulatorUnavailable) as refused:
        startup_failures.failed(errored(0, 2, "Traceback\nOSError: at 0x2f"))
    assert "OSError: at 0x2f" in str(refused.value)
