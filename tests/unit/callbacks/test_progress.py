"""Progress of a run, on a terminal and in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.callbacks import progress
from proctor.callbacks.progress import (
    Progress,
    ProgressLine,
    RecordingProgress,
    RecordingTarget,
    VideoProgress,
)
from proctor.callbacks.staged_episodes import EpisodeFilter
from proctor.runs.journal import make_record
from proctor.runs.records import RunProgress
from proctor.types import EpisodeResult, EpisodeSpec, Outcome

PROGRESS = RunProgress(elapsed_s=4.0, steps=50, batches=0, batched_requests=0)


def plan(n_tasks: int, n_episodes: int) -> list[EpisodeSpec]:
    fake = Fake(FakeConfig(n_tasks=n_tasks))
    return [fake.spec(task, index, 1000) for task in fake.tasks() for index in range(n_episodes)]


def ended(spec: EpisodeSpec, outcome: Outcome, at: float = 0.0) -> EpisodeResult:
    return EpisodeResult(spec, outcome, ended_at=at)


def test_a_log_repeats_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PLAIN_EVERY_S", 0.0)
    log = io.StringIO()
    filming = VideoProgress(1, Console(file=log))
    for _ in range(8):
        filming.on_progress(PROGRESS)
    filming.on_episode_end(ended(plan(1, 1)[0], Outcome.FAILURE))
    filming.close()
    assert log.getvalue() == "filming 0/1  starting\nfilming 1/1  done in 0:04\n"


def recording(log: io.StringIO, before: dict[tuple[str, int], int]) -> RecordingProgress:
    target = RecordingTarget(n_tasks=2, per_task=2, before=before, keep=EpisodeFilter.SUCCESS)
    return RecordingProgress(target, lambda: 1, Console(file=log))


def test_a_recording_counts_no_more_demonstrations_than_it_wants() -> None:
    shown = recording(io.StringIO(), {("point", 0): 1})
    for spec in plan(1, 5):  # episodes that replaced errors, and the errors tried again
        shown.on_episode_end(ended(spec, Outcome.SUCCESS))
    assert shown.line().startswith("recorded 2/4 (1 in the dataset)  0 not kept")
    for spec in plan(2, 2):
        shown.on_episode_end(ended(spec, Outcome.SUCCESS))
    shown.on_progress(PROGRESS)
    assert shown.line().startswith("recorded 4/4 (1 in the dataset)  0 not kept  done in 0:04")


def test_a_recording_without_a_success_is_not_starting() -> None:
    log = io.StringIO()
    shown = recording(log, {})
    assert "starting" in shown.line()
    shown.on_episode_end(ended(plan(1, 1)[0], Outcome.FAILURE))
    assert "1 not kept  none kept yet" in shown.line()
    shown.on_progress(PROGRESS)
    shown.close()
    assert "1 not kept  ended after 0:04" in log.getvalue()


def test_every_running_task_has_a_line_latest_first() -> None:
    specs = plan(3, 2)
    shown = Progress(
        specs, [make_record(ended(specs[0], Outcome.SUCCESS))], Console(file=io.StringIO())
    )
    assert shown.below() == ["  point-0  1/2  100.0% [20.7, 100.0] n=1"]
    shown.on_episode_end(ended(specs[2], Outcome.FAILURE, at=5.0))
    assert [line.split()[:2] for line in shown.below()] == [["point-1", "1/2"], ["point-0", "1/2"]]
    shown.on_episode_end(ended(specs[3], Outcome.ERROR, at=6.0))
    assert [line.split()[:2] for line in shown.below()] == [["point-0", "1/2"], ["point-1", "2/2"]]
    assert shown.line().endswith("1/3 tasks done")


def test_a_run_of_one_task_has_one_line() -> None:
    specs = plan(1, 2)
    shown = Progress(
        specs, [make_record(ended(specs[0], Outcome.SUCCESS))], Console(file=io.StringIO())
    )
    assert shown.below() == []
    assert "tasks" not in shown.line()


def test_long_names_and_many_tasks_stay_inside_the_screen() -> None:
    specs = plan(40, 1)
    screen = Console(file=io.StringIO(), width=30, height=10)
    shown = Progress(specs, [make_record(ended(spec, Outcome.SUCCESS)) for spec in specs], screen)
    assert len(shown.below()) == 7


def test_the_lines_below_are_redrawn_on_a_terminal() -> None:
    screen = io.StringIO()
    line = ProgressLine(Console(file=screen, force_terminal=True, width=60))
    line.show("1/2  success n/a", ["  push-v3  1/2"])
    line.close("2/2  success n/a")
    assert "push-v3" not in screen.getvalue().splitlines()[-1]
    assert "2/2" in screen.getvalue()


def test_the_rate_of_an_unfinished_run_says_that_successes_end_first() -> None:
    specs = plan(1, 2)
    shown = Progress(specs, [], Console(file=io.StringIO()))
    shown.on_episode_end(ended(specs[0], Outcome.SUCCESS))
    assert "success so far (successes end first) 100.0%" in shown.line()
    shown.on_episode_end(ended(specs[1], Outcome.FAILURE))
    assert "  success 50.0%" in shown.line()
