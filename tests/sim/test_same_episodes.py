"""An episode depends on its spec and the policy only. Shown on all 50 tasks of Meta-World."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import psutil
import pytest

from proctor import evaluate
from proctor.benchmarks.metaworld.tasks import TASKS
from proctor.evaluation.run import Evaluation
from proctor.features import Array
from proctor.policies.base import Batch, PolicyPlugin
from proctor.policies.scripted.random import RandomConfig, RandomPolicy
from proctor.types import EpisodeSpec

pytestmark = pytest.mark.sim

Episodes = dict[tuple[str, int], tuple[Any, ...]]


def episodes(run: Evaluation) -> Episodes:
    """Reward sequence and final qpos (as digest), success and steps of every episode."""
    assert run.complete
    return {
        (row.task, row.episode_index): (row.digest, row.outcome, row.steps, row.sum_reward)
        for row in run.rows
    }


def play(folder: Path, tasks: str, **settings: Any) -> Evaluation:
    return evaluate(
        policy={"type": "random", "n_action_steps": 4},
        env={"type": "metaworld", "task": tasks, "episode_length": 12},
        eval={"n_episodes": 2, **settings},
        output_dir=folder,
    )


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> Episodes:
    run = play(
        tmp_path_factory.mktemp("serial") / "run", "mt50", batch_size=1, use_async_envs=False
    )
    assert len(run.rows) == 100
    assert len({row.digest for row in run.rows}) == 100
    return episodes(run)


@pytest.mark.slow  # five workers that are killed play them in another order, too
def test_two_workers_and_the_tasks_in_reverse_order(tmp_path: Path, one_by_one: Episodes) -> None:
    backwards = ",".join(row.name for row in reversed(TASKS))
    assert episodes(play(tmp_path / "run", backwards, batch_size=2)) == one_by_one


def test_five_workers_that_are_killed_now_and_then(tmp_path: Path, one_by_one: Episodes) -> None:
    over = threading.Event()

    def kill_now_and_then() -> None:
        while not over.wait(2.0):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
                family = psutil.Process().children(recursive=True)
                workers = [p for p in family if p.ppid() != psutil.Process().pid]
                if workers:
                    workers[int(time.time()) % len(workers)].kill()

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        run = play(tmp_path / "run", "mt50", batch_size=5, max_retries=20)
    finally:
        over.set()
        killer.join()
    assert episodes(run) == one_by_one
    assert any(row.attempts > 1 for row in run.rows), "no worker was killed at work"


@pytest.mark.parametrize(
    "tasks", [[row.name for row in TASKS[::8]], pytest.param(["mt50"], marks=pytest.mark.slow)]
)
def test_lockstep(tmp_path: Path, one_by_one: Episodes, tasks: list[str]) -> None:
    run = play(tmp_path / "run", ",".join(tasks), batch_size=2, scheduler="lockstep")
    expected = {key: episode for key, episode in one_by_one.items() if key[0] in tasks}
    assert episodes(run) == (expected or one_by_one)
    assert len(run.rows) == 2 * (50 if tasks == ["mt50"] else len(tasks))


class Looking(RandomPolicy):
    """Acts on every pixel it sees: an image that differs in one bit changes the episode."""

    def new_episode(self, spec: EpisodeSpec) -> None:
        return None

    def act(self, batch: Batch) -> Array:
        rows = []
        for row in range(len(batch.queries)):
            seen = b"".join(array[row].tobytes() for array in batch.observations.values())
            rng = np.random.default_rng(crc32(seen))
            rows.append(rng.uniform(-1, 1, (self.spec.n_action_steps, 4)))
        return np.asarray(rows)


LOOKING = PolicyPlugin(RandomConfig, Looking, "acts on pixels")


def test_a_policy_that_acts_on_pixels(tmp_path: Path) -> None:
    def look(name: str, **settings: Any) -> Episodes:
        run = evaluate(
            policy={
                "type": "tests.sim.test_same_episodes:LOOKING",
                "inputs": ["observation.image", "observation.state"],
                "n_action_steps": 5,
                "n_obs_steps": 2,
            },
            env={
                "type": "metaworld",
                "task": "push-v3,drawer-open-v3",
                "episode_length": 15,
                "observation_height": 32,
                "observation_width": 32,
                "shadow_map": 0,
            },
            eval={"n_episodes": 3, **settings},
            video={"episodes": 0},
            output_dir=tmp_path / name,
        )
        renders = {row.renders for row in run.rows}
        assert renders == ({16 * 1} if "lockstep" in name else {1 + 2 + 2})
        return episodes(run)

    one_by_one = look("serial", batch_size=1, use_async_envs=False)
    assert look("two", batch_size=2) == one_by_one
    assert look("lockstep", batch_size=2, scheduler="lockstep") == one_by_one
