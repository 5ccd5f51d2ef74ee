"""The origin of an error decides: errors of the simulator's code are failures, ours never are."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim
from proctor.benchmarks.guarded_sim import GuardedSim, proctor_code
from proctor.callbacks.staged_episodes import EpisodeRecorder, RecordingOptions
from proctor.engine.worker.episode import Window
from proctor.errors import SimulatorFault, WorkerError
from proctor.evaluation.run import Evaluation
from proctor.features import Array, Observation
from proctor.runs.journal import EpisodeRecord
from proctor.types import EpisodeSpec, Outcome, StepResult, Task

MakeRun = Callable[..., Evaluation]
BROKEN = ("point", 0, 1)
HERE = "tests.unit.engine.test_error_origin"


def fail(how: str) -> None:
    """Raise, exit or crash in the given way."""
    match how:
        case "raise":
            raise ValueError("this code is wrong")
        case "worker error":
            raise WorkerError("this code is wrong")
        case "system exit":
            raise SystemExit(3)
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "hang":
            time.sleep(3600)


@dataclass
class BreakingConfig(FakeConfig):
    """How the second episode fails at its third step, and in which code."""

    how: str = field(default="", metadata={"help": "how it breaks"})
    where: str = field(default="", metadata={"help": "in which code"})


class BreakingSim(FakeSim):
    """Fails in its own code, or in Proctor's code that it calls, as an adapter does."""

    def __init__(self, config: BreakingConfig, task: Task) -> None:
        super().__init__(config, task)
        self._how, self._where = config.how, config.where

    def _break_in(self, where: str) -> None:
        if self._where == where and (self._index, self._steps) == (1, 3):
            fail(self._how)

    def step(self, action: Array) -> StepResult:
        step = super().step(action)
        self._break_in("step")
        with proctor_code():
            self._break_in("adapter")
        self._break_in("step after adapter")
        return step

    def observe(self, keys: Sequence[str]) -> Observation:
        self._break_in("observe")
        return super().observe(keys)

    def physics(self) -> Array:
        self._break_in("physics")
        return super().physics()


class BreakingBenchmark(Fake):
    """The fake benchmark with that simulator; it may break the recording of its worker instead."""

    _config: BreakingConfig
    preload = ("proctor.datasets.writing.staged_episode",)  # else a slow import counts as a hang

    def make_sim(self, task: Task) -> FakeSim:
        if self._config.where == "recorder":
            _break_the_recorder(self._config.how)
        return BreakingSim(self._config, task)


def _break_the_recorder(how: str) -> None:
    """Make the recording of every second episode in this process fail at its third frame."""

    def begin(self: RecordingOptions, spec: EpisodeSpec) -> EpisodeRecorder:
        self.discard(spec.key)
        return (BreakingTake if spec.index == 1 else EpisodeRecorder)(self, spec)

    BreakingTake.how = how
    RecordingOptions.begin = begin  # type: ignore[method-assign]


class BreakingTake(EpisodeRecorder):
    """A recorded episode whose third frame cannot be encoded."""

    how = ""
    _frames = 0

    def add(self, seen: Observation, wanted: Array, step: StepResult) -> None:
        self._frames += 1
        if self._frames == 3:
            fail(self.how)
        super().add(seen, wanted, step)


BREAKING = BenchmarkPlugin(BreakingConfig, BreakingBenchmark, "breaks as it is told")


def broken(run: MakeRun, where: str, how: str, **flags: Any) -> EpisodeRecord:
    """Return the episode that failed; all others are complete."""
    evaluation = run(
        env__type=f"{HERE}:BREAKING",
        env__endless=True,
        env__where=where,
        env__how=how,
        policy__inputs="observation.state",
        eval__max_retries=1,
        eval__watchdog_s=2.0 if how == "hang" else 120.0,
        **flags,
    )
    rows = {row.key: row for row in evaluation.rows}
    found = rows.pop(BROKEN)
    assert all(row.outcome.is_complete for row in rows.values())
    counted = 4 if found.outcome is Outcome.DIVERGED else 3
    assert evaluation.tally.episodes == counted
    return found


@pytest.mark.parametrize(
    ("where", "how"),
    [
        ("step", "raise"),
        ("step", "worker error"),
        ("step", "system exit"),
        ("step", "segfault"),
        ("step", "exit"),
        ("step", "hang"),
        ("step after adapter", "raise"),
        ("step after adapter", "segfault"),
        ("observe", "raise"),
    ],
)
def test_what_the_simulator_does_twice_at_one_step_is_a_failure(
    run: MakeRun, where: str, how: str
) -> None:
    row = broken(run, where, how)
    assert (row.outcome, row.steps, row.attempts) == (Outcome.DIVERGED, 3, 2)


@pytest.mark.parametrize("how", ["raise", "system exit", "segfault", "exit", "hang"])
def test_what_an_adapter_of_ours_does_inside_a_step_is_an_error(run: MakeRun, how: str) -> None:
    row = broken(run, "adapter", how)
    assert (row.outcome, row.steps, row.attempts) == (Outcome.ERROR, None, 2)


@pytest.mark.parametrize("how", ["raise", "segfault", "hang"])
def test_what_recording_does_is_an_error(run: MakeRun, tmp_path: Path, how: str) -> None:
    row = broken(run, "recorder", how, record=str(tmp_path / "kept"), record_images=False)
    assert (row.outcome, row.steps, row.attempts) == (Outcome.ERROR, None, 2)


def test_what_cannot_be_put_into_shared_memory_is_an_error(
    run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = Window.push

    def breaks(self: Window, observation: Observation, *, first: bool) -> None:
        push(self, observation, first=first)
        if not first:
            raise ValueError("no room in the shared memory")

    monkeypatch.setattr(Window, "push", breaks)
    evaluation = run(policy__inputs="observation.state", eval__use_async_envs=False)
    assert {row.outcome for row in evaluation.rows} == {Outcome.ERROR}
    assert evaluation.tally.episodes == 0


@pytest.mark.parametrize("where", ["step", "observe", "physics"])
def test_the_fault_names_what_the_simulator_raised(where: str) -> None:
    benchmark = BreakingBenchmark(BreakingConfig(where=where, how="raise"))
    task = benchmark.tasks()[0]
    sim = GuardedSim(benchmark.make_sim(task), benchmark.features())
    sim.reset(EpisodeSpec(task, 1, 7))
    action = np.zeros(2, np.float32)
    for _ in range(2):
        sim.step(action)

    def third_step() -> None:
        sim.step(action)
        sim.observe(["observation.state"])
        sim.physics()

    with pytest.raises(SimulatorFault) as caught:
        third_step()
    assert isinstance(caught.value.__cause__, ValueError)
