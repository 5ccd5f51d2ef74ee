"""An episode depends on its spec and the policy only.

Shown on a sample of Meta-World's tasks here, on all 50 in `make test-all`.
"""

from __future__ import annotations

import contextlib
import threading
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
from proctor.runs.journal import JOURNAL_FILE
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


def play(folder: Path, tasks: list[str], **settings: Any) -> Evaluation:
    return evaluate(
        policy={"type": "random", "n_action_steps": 4},
        env={"type": "metaworld", "task": ",".join(tasks), "episode_length": 12},
        eval={"n_episodes": 2, **settings},
        output_dir=folder,
    )


ALL = [row.name for row in TASKS]
samples = pytest.mark.parametrize(
    "tasks",
    [
        pytest.param(ALL[::8], id="some"),
        pytest.param(ALL, id="all", marks=pytest.mark.slow),
    ],
    scope="module",
)


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory, tasks: list[str]) -> Episodes:
    folder = tmp_path_factory.mktemp("serial") / "run"
    run = play(folder, tasks, batch_size=1, use_async_envs=False)
    assert len(run.rows) == 2 * len(tasks)
    assert len({row.digest for row in run.rows}) == 2 * len(tasks)
    return episodes(run)


@pytest.mark.slow  # five workers that are killed play them in another order, too
@samples
def test_two_workers_and_the_tasks_in_reverse_order(
    tmp_path: Path, tasks: list[str], one_by_one: Episodes
) -> None:
    assert episodes(play(tmp_path / "run", tasks[::-1], batch_size=2)) == one_by_one


@samples
def test_five_workers_that_are_killed_now_and_then(
    tmp_path: Path, tasks: list[str], one_by_one: Episodes
) -> None:
    over, journal = threading.Event(), tmp_path / "run" / JOURNAL_FILE

    def kill_now_and_then() -> None:
        """After every third episode: how long one takes says how busy the machine is."""
        killed = 0
        while not over.wait(0.02):
            done = journal.read_bytes().count(b"\n") if journal.exists() else 0
            if done < 3 * (killed + 1):
                continue
            killed += 1
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
                family = psutil.Process().children(recursive=True)
                workers = [p for p in family if p.ppid() != psutil.Process().pid]
                if workers:
                    workers[killed % len(workers)].kill()

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        run = play(tmp_path / "run", tasks, batch_size=5, max_retries=20)
    finally:
        over.set()
        killer.join()
    assert episodes(run) == one_by_one
    assert any(row.attempts > 1 for row in run.rows), "no worker was killed at work"


@samples
def test_lockstep(tmp_path: Path, tasks: list[str], one_by_one: Episodes) -> None:
    run = play(tmp_path / "run", tasks, batch_size=2, scheduler="lockstep")
    assert episodes(run) == one_by_one


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
                "task": "drawer-open-v3",
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
    in_step = {"scheduler": "lockstep", "use_async_envs": False}
    assert look("lockstep", batch_size=2, **in_step) == one_by_one
