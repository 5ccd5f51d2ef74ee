"""Environments that do not forget: found out before a run, and given up after every episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proctor import evaluate
from proctor.benchmarks.gym.env_inspection import inspect_env
from proctor.cli import main
from proctor.testing import check_sim
from tests.sim.adapted_benchmarks import GYM, HUB, made, make
from tests.sim.small_gym import Keeping

pytestmark = pytest.mark.sim
KEEPING = {"type": "gym", "id": "tests.sim.small_gym:proctor/Keeping-v0"}
HUB_KEEPING = {**HUB, "kwargs": {"keeping": True}}


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at environments here, which saves the second it takes to start a process."""
    monkeypatch.setattr("proctor.benchmarks.gym.benchmark.probe_env", inspect_env)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("env", [KEEPING, HUB_KEEPING], ids=["gym", "hub"])
def test_an_environment_that_carries_state_over_is_opened_anew_for_every_episode(
    env: dict[str, Any], tmp_path: Path
) -> None:
    ways: dict[str, dict[str, Any]] = {
        "one": {"batch_size": 1, "use_async_envs": False},
        "two": {"batch_size": 2, "use_async_envs": env is HUB_KEEPING},  # one in processes will do
        "lockstep": {"batch_size": 2, "scheduler": "lockstep", "use_async_envs": False},
    }
    seen = {}
    for name, how in ways.items():
        run = evaluate(
            policy={"type": "random"},
            env=env,
            eval={"n_episodes": 4, **how},
            output_dir=tmp_path / name,
        )
        seen[name] = [(row.digest, row.sum_reward) for row in run.rows]
    assert seen["one"] == seen["two"] == seen["lockstep"]
    check_sim(made(env), make=make)


@pytest.mark.usefixtures("in_this_process")
def test_it_is_said_in_one_line_and_part_of_the_protocol(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--env.type=gym", f"--env.id={KEEPING['id']}", "--policy.type=zero"]
    flags += ["--eval.n_episodes=2", "--eval.use_async_envs=false"]
    assert main(["eval", *flags, f"--output_dir={tmp_path / 'run'}"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note:")]
    assert said == [
        f"note: {KEEPING['id']} carries state from one episode into the next: every episode gets a "
        "new one"
    ]
    assert made(KEEPING).protocol()["reset_rule"].startswith("a fresh environment for every")
    assert made(GYM).protocol()["reset_rule"].startswith("the environment's own reset")


@pytest.mark.usefixtures("in_this_process")
def test_an_environment_that_forgets_is_opened_once() -> None:
    benchmark: Any = made(GYM)
    assert (benchmark.notes, benchmark.warnings) == ((), ())
    (task,) = benchmark.tasks()
    sim: Any = benchmark.make_sim(task)
    env = sim._sim._env
    for index in range(3):
        sim.reset(benchmark.spec(task, index, 0))
    assert sim._sim._env is env


@pytest.mark.usefixtures("in_this_process")
def test_what_shows_after_many_episodes_only_is_found_too() -> None:
    benchmark: Any = made({**KEEPING, "kwargs": {"shows_after": 40}})  # of 5 steps each
    assert len(benchmark.notes) == 1


@pytest.mark.usefixtures("in_this_process")
def test_one_that_even_a_fresh_start_does_not_mend_is_warned_of() -> None:
    benchmark: Any = made({**KEEPING, "kwargs": {"all_over": True}})
    (warning,) = benchmark.warnings
    assert "give different episodes for the same seed" in warning


def test_the_other_process_finds_it_too() -> None:
    opened = Keeping.opened
    benchmark: Any = made(KEEPING)
    assert len(benchmark.notes) == 1
    assert Keeping.opened == opened, "none was opened here"
