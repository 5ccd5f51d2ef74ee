"""A broken simulator is an error; a simulator that the policy breaks is a failure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim
from proctor.benchmarks.starts import measured_start
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.evaluation.audit import audit
from proctor.evaluation.preparing import prepare
from proctor.evaluation.run import Evaluation, run_evaluation
from proctor.features import Array
from proctor.runs.journal import EpisodeRecord
from proctor.types import Outcome, Start, StepResult, Task
from tests.conftest import digests

POLICYS = ["raise", "nan", "shape", "segfault", "exit", "hang"]
MACHINES = ["memory", "kill", "stop"]
BROKEN = ("point", 0, 1)


def the_broken(evaluation: Evaluation) -> EpisodeRecord:
    """Return the episode that was made to fail; all others are complete."""
    rows = {row.key: row for row in evaluation.rows}
    broken = rows.pop(BROKEN)
    assert all(row.outcome.is_complete for row in rows.values())
    return broken


def the_start_of_the_broken() -> Start | None:
    """Return the start that a simulator without faults has in the broken episode."""
    fake = Fake(FakeConfig())
    (task,) = fake.tasks()
    sim = fake.make_sim(task)
    sim.reset(fake.spec(task, BROKEN[2], 1000))
    return measured_start(sim, sim.physics())


@pytest.mark.parametrize("policy", ["random", "expert"])
@pytest.mark.parametrize("fault", POLICYS)
def test_the_same_error_at_the_same_step_of_a_retry_is_a_failure_of_the_policy(
    run: Callable[..., Evaluation], fault: str, policy: str
) -> None:
    inputs = {"policy__inputs": "observation.state"} if policy == "random" else {}
    evaluation = run(
        policy__type=policy,
        **inputs,
        env__endless=True,
        env__faults={"0/1/3": fault},
        eval__watchdog_s=2.0 if fault == "hang" else 120.0,
    )
    broken = the_broken(evaluation)
    assert broken.outcome is Outcome.DIVERGED
    assert (broken.steps, broken.attempts, broken.digest) == (3, 2, None)
    assert broken.success_once is False
    assert broken.error
    assert broken.start == the_start_of_the_broken()
    assert (evaluation.tally.episodes, evaluation.tally.diverged) == (4, 1)
    assert evaluation.tally.errors == 0


@pytest.mark.parametrize("fault", MACHINES)
def test_a_fault_of_the_machine_never_is_however_often_it_comes(
    run: Callable[..., Evaluation], fault: str
) -> None:
    limit_s = 2.0 if fault == "stop" else 120.0
    evaluation = run(env__faults={"0/1/3": fault}, eval__watchdog_s=limit_s, eval__max_retries=1)
    broken = the_broken(evaluation)
    assert (broken.outcome, broken.attempts, broken.steps) == (Outcome.ERROR, 2, None)
    assert (evaluation.tally.episodes, evaluation.tally.errors) == (3, 1)


@pytest.mark.parametrize("fault", ["raise", "segfault"])
def test_before_the_first_action_no_policy_is_to_blame(
    run: Callable[..., Evaluation], fault: str
) -> None:
    assert the_broken(run(env__faults={"0/1/0": fault})).outcome is Outcome.ERROR
    assert the_broken(run(env__faults={"0/1/1": fault})).outcome is Outcome.DIVERGED


def test_without_a_retry_nobody_can_tell_whose_doing_it_was(
    run: Callable[..., Evaluation],
) -> None:
    broken = the_broken(run(env__faults={"0/1/3": "raise"}, eval__max_retries=0))
    assert (broken.outcome, broken.attempts) == (Outcome.ERROR, 1)


class Drifting(FakeSim):
    """Fails in the second episode, each time a step later than the time before."""

    def __init__(self, config: FakeConfig, task: Task) -> None:
        super().__init__(config, task)
        self._marks = Path(str(config.break_once_in))

    def step(self, action: Array) -> StepResult:
        step = super().step(action)
        tries = len(list(self._marks.iterdir()))
        if self._index == 1 and self._steps == 3 + tries:
            (self._marks / str(tries)).touch()
            raise RuntimeError("the device is gone")
        return step

    def _maybe_break(self) -> None:
        """Only above."""


class DriftingBenchmark(Fake):
    """The fake benchmark with that simulator."""

    def make_sim(self, task: Task) -> FakeSim:
        return Drifting(self._config, task)


DRIFTING = BenchmarkPlugin(FakeConfig, DriftingBenchmark, "breaks elsewhere each time")


def test_the_same_error_at_another_step_is_no_ones(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    evaluation = run(
        env__type="tests.unit.engine.test_diverged:DRIFTING",
        env__endless=True,
        env__break_once_in=str(marks),
    )
    assert (the_broken(evaluation).outcome, the_broken(evaluation).attempts) == (Outcome.ERROR, 3)


def test_its_reward_so_far_counts_as_far_as_the_worker_could_tell(
    run: Callable[..., Evaluation],
) -> None:
    whole = run(env__endless=True, env__episode_length=2)
    raised = the_broken(run(env__endless=True, env__faults={"0/1/3": "raise"}))
    (short,) = [row for row in whole.rows if row.key == BROKEN]
    assert raised.sum_reward == short.sum_reward
    assert raised.sim_s is not None
    killed = the_broken(run(env__endless=True, env__faults={"0/1/3": "segfault"}))
    assert (killed.sum_reward, killed.renders, killed.sim_s) == (None, None, None)


@pytest.mark.parametrize("how", [{"eval__use_async_envs": False}, {"eval__scheduler": "lockstep"}])
@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_every_scheduler_says_the_same(
    run: Callable[..., Evaluation], fault: str, how: dict[str, Any]
) -> None:
    load = {"policy__inputs": "observation.state", "env__faults": {"0/1/3": fault}}
    usual, other = run(**load), run(**load, **how)
    assert digests(other) == digests(usual)
    assert the_broken(other).sum_reward == the_broken(usual).sum_reward
    assert the_broken(other).attempts == 2


def test_lockstep_goes_on_with_a_simulator_that_works(run: Callable[..., Evaluation]) -> None:
    evaluation = run(eval__scheduler="lockstep", eval__batch_size=1, env__faults={"0/1/3": "raise"})
    assert the_broken(evaluation).outcome is Outcome.DIVERGED


def test_eval_info_names_the_diverged_and_the_bounds_of_errors(
    run: Callable[..., Evaluation],
) -> None:
    evaluation = run(
        policy__type="expert", env__faults={"0/1/1": "raise", "0/2/0": "raise", "0/3/0": "raise"}
    )
    overall = json.loads((evaluation.path / "eval_info.json").read_text())["overall"]
    assert (overall["n_episodes"], overall["n_diverged"], overall["n_errors"]) == (2, 1, 2)
    assert overall["pc_success"] == 50.0
    assert overall["pc_success_bounds"] == [25.0, 75.0]
    assert str(evaluation) == (
        "50.0% [9.5, 90.5] n=2, 1 diverged, 2 errors (25.0% to 75.0% if they had counted)"
    )


@pytest.mark.parametrize("fault", ["raise", "segfault"])
def test_the_audit_expects_it_to_diverge_again(tmp_path: Path, fault: str) -> None:
    settings = {"policy.type": "random", "env.type": "fake", "output_dir": str(tmp_path / "run"),
                "eval.n_episodes": 2, "env.faults": {"0/1/3": fault}}  # fmt: skip
    evaluation = run_evaluation(prepare(build(EvalConfig, settings)), settings)
    assert evaluation.tally.diverged == 1

    def differences(**flags: Any) -> list[list[str]]:
        now = prepare(build(EvalConfig, settings | flags))
        replays = audit(
            now.settings(), now.policy, now.plan, evaluation.rows, 2, lambda replay: None
        )
        return [replay.differences for replay in replays]

    assert differences() == [[], []]
    healthy = differences(**{"env.faults": {}})
    assert sorted(len(found) > 0 for found in healthy) == [False, True]
