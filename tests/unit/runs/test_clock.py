"""Durations do not depend on the system clock, which may be set during a run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from proctor.evaluation.run import Evaluation
from proctor.report.run.timeline import make_timeline
from proctor.runs.folder import RunFolder
from proctor.runs.journal import read_journal
from proctor.system import clock

DAY = 86400.0


class SetClock:
    """The system's clock, which can be set."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._read = time.time

    def __call__(self) -> float:
        return self._read() + self.ahead_s


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[SetClock]:
    system = SetClock()
    monkeypatch.setattr(time, "time", system)
    yield system
    system.ahead_s = 0.0
    clock.begin_session()


def seconds_of(evaluation: Evaluation) -> float:
    info = json.loads((evaluation.path / "eval_info.json").read_text())
    return float(info["overall"]["eval_s"])


@pytest.mark.parametrize("by", [DAY, -7200.0])
def test_a_clock_that_is_set_does_not_change_the_time(system: SetClock, by: float) -> None:
    began = clock.begin_session()
    system.ahead_s = by
    assert 0 <= clock.now() - began < 60


@pytest.mark.parametrize("by", [DAY, -7200.0])
def test_a_clock_that_is_set_in_a_run_does_not_change_its_seconds(
    run: Callable[..., Evaluation], system: SetClock, monkeypatch: pytest.MonkeyPatch, by: float
) -> None:
    write = RunFolder.write

    def write_and_set(*args: object) -> None:
        write(*args)  # type: ignore[arg-type]
        system.ahead_s = by

    monkeypatch.setattr(RunFolder, "write", write_and_set)
    assert 0 < seconds_of(run(eval__use_async_envs=False)) < 600


def test_workers_follow_the_clock_of_the_session(
    run: Callable[..., Evaluation], system: SetClock
) -> None:
    system.ahead_s = DAY  # of this process; the workers' own is right
    evaluation = run()
    assert 0 < seconds_of(evaluation) < 600
    assert all(row.start_time > time.time() - 600 for row in evaluation.rows)


@pytest.mark.parametrize("by", [DAY, -7200.0])
def test_a_clock_that_is_set_between_sessions_does_not_change_the_seconds(
    run: Callable[..., Evaluation], system: SetClock, by: float
) -> None:
    first = run(eval__n_episodes=1)
    of_first = seconds_of(first)
    system.ahead_s = by
    second = run(eval__n_episodes=2, resume=True, output_dir=str(first.path))
    assert of_first < seconds_of(second) < 600
    record = RunFolder(first.path).read()
    assert record is not None
    rows = read_journal(first.path).rows
    assert record.sessions == sorted(record.sessions)
    assert make_timeline(rows, record.sessions).total_s < 600
