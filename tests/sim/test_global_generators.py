"""Environments that draw from ``random`` and ``np.random``: the same episodes, and no clones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor import evaluate, make_env
from proctor.benchmarks.gym.env_inspection import inspect_env
from proctor.benchmarks.gym.probe import EnvFacts, ProbeRequest
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.engine.inference import InlineInference
from proctor.evaluation.audit import run_alone
from proctor.evaluation.preparing import prepare
from proctor.system.global_rng import IsolatedRng
from proctor.testing import check_sim
from tests.sim.adapted_benchmarks import made, make

pytestmark = [pytest.mark.sim, pytest.mark.usefixtures("in_this_process")]
CARELESS = {"type": "gym", "id": "tests.sim.small_gym:proctor/Careless-v0"}


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at environments here, which saves the second it takes to start a process."""

    def learn(question: ProbeRequest) -> EnvFacts:
        with IsolatedRng().activated():
            return inspect_env(question)

    monkeypatch.setattr("proctor.benchmarks.gym.benchmark.probe_env", learn)


def settings(**how: Any) -> dict[str, Any]:
    return {"policy": {"type": "random"}, "env": CARELESS, "eval": {"n_episodes": 6, **how}}


def test_every_scheduler_plays_the_same_episodes_and_none_twice(tmp_path: Path) -> None:
    ways: dict[str, dict[str, Any]] = {
        "three": {"batch_size": 3},
        "here": {"batch_size": 3, "use_async_envs": False},
        "lockstep": {"batch_size": 2, "scheduler": "lockstep"},
        "lockstep here": {"batch_size": 3, "scheduler": "lockstep", "use_async_envs": False},
    }
    seen = {
        name: [row.digest for row in evaluate(**settings(**how), output_dir=tmp_path / name).rows]
        for name, how in ways.items()
    }
    assert len(set(seen["three"])) == 6
    assert all(digests == seen["three"] for digests in seen.values()), seen


def test_an_audit_plays_them_again(tmp_path: Path) -> None:
    run = evaluate(**settings(batch_size=2), output_dir=tmp_path / "run")
    prepared = prepare(build(EvalConfig, {**settings(), "output_dir": str(tmp_path / "again")}))
    inference = InlineInference(prepared.policy, prepared.benchmark.action)
    again = run_alone(prepared.settings(), inference, prepared.plan[4], in_process=True)
    assert again.digest == run.rows[4].digest


def test_the_users_own_generators_are_left_alone(tmp_path: Path) -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), np.random.uniform(), np.random.normal()

    env = make_env(CARELESS, n_envs=2, use_async_envs=False)["proctor/Careless-v0"][0]

    def play() -> None:
        env.reset(seed=1)
        env.step(np.zeros((2, 1), np.float32))

    for disturb in (
        lambda: evaluate(**settings(use_async_envs=False), output_dir=tmp_path / "run"),
        play,
        lambda: check_sim(made(CARELESS), make=make),
    ):
        random.seed(5)
        np.random.seed(5)
        first = drawn()
        expected = drawn()
        random.seed(5)
        np.random.seed(5)
        assert drawn() == first
        disturb()
        assert drawn() == expected
    env.close()


@pytest.mark.parametrize("use_async_envs", [True, False])
def test_sub_environments_of_make_env_draw_from_their_seeds(use_async_envs: bool) -> None:
    env = make_env(CARELESS, 3, use_async_envs)["proctor/Careless-v0"][0]

    def course(seeds: list[int]) -> np.ndarray[Any, Any]:
        first, _ = env.reset(seed=seeds)
        steps = [env.step(np.zeros((3, 1), np.float32))[0]["agent_pos"] for _ in range(3)]
        return np.stack([first["agent_pos"], *steps])

    one = course([1, 2, 3])
    assert len(set(one[-1].ravel())) == 3
    np.testing.assert_array_equal(course([3, 1, 2])[:, [1, 2, 0]], one)
    env.close()
