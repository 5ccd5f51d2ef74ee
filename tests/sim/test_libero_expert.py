"""LIBERO's scripted expert on real simulators: it solves tasks, always in the same way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from proctor.benchmarks.base import Sim, interface_of
from proctor.benchmarks.libero.benchmark import Libero, LiberoConfig
from proctor.benchmarks.libero.scene import COLUMNS, ROWS
from proctor.errors import UsageError
from proctor.features import ENVIRONMENT_STATE
from proctor.policies.scripted.expert import ExpertConfig, ExpertPolicy
from proctor.types import Task
from tests.refusals import refuses
from tests.sim.libero_reference import needs_assets

pytestmark = [pytest.mark.sim, needs_assets()]


@dataclass(frozen=True)
class Played:
    """An open simulator, the task it is of and the benchmark it came from."""

    benchmark: Libero
    task: Task
    sim: Sim

    def solve(self) -> tuple[bool, str]:
        """Play episode 0; return whether the expert succeeded, and a digest of all it did."""
        self.sim.reset(self.benchmark.spec(self.task, 0, 1000))
        expert, digest, success = self.benchmark.expert(self.task), hashlib.sha256(), False
        for _ in range(self.task.max_steps):
            success = self.sim.step(expert(self.sim.observe((ENVIRONMENT_STATE,)))).success
            digest.update(self.sim.physics().tobytes())
            if success:
                break
        return success, digest.hexdigest()


@contextmanager
def opened(suite: str, task_id: int) -> Iterator[Played]:
    benchmark = Libero(LiberoConfig(task=suite, task_ids=[task_id]))
    (task,) = benchmark.tasks()
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("MUJOCO_GL", "disable")  # no textures
        sim = benchmark.make_sim(task)
    yield Played(benchmark, task, sim)
    sim.close()


@pytest.fixture(scope="module")
def sauce() -> Iterator[Played]:
    """Pick up the bbq sauce and place it in the basket."""
    with opened("libero_object", 3) as played:
        yield played


def test_the_expert_puts_a_sauce_into_the_basket_the_same_way_every_time(sauce: Played) -> None:
    first, second = sauce.solve(), sauce.solve()
    assert first[0]
    assert first == second


@pytest.mark.slow  # another kind of grasp; the sauce shows the rest
def test_the_expert_takes_a_bowl_by_its_rim_and_puts_it_on_the_plate() -> None:
    with opened("libero_spatial", 0) as bowl:
        success, _ = bowl.solve()
    assert success


def test_the_privileged_table_shows_the_hand_and_every_part_and_nothing_else(sauce: Played) -> None:
    sauce.sim.reset(sauce.benchmark.spec(sauce.task, 0, 1000))
    table = sauce.sim.observe((ENVIRONMENT_STATE,))[ENVIRONMENT_STATE]
    assert table.shape == (ROWS, COLUMNS)
    things = 9  # the hand, seven objects and the inside of the basket
    assert (np.abs(np.linalg.norm(table[:things, 3:7], axis=1) - 1) < 1e-9).all()
    assert not table[things:].any()


def test_a_task_without_a_skill_is_refused_in_one_line_that_names_those_it_can_do() -> None:
    benchmark = Libero(LiberoConfig(task="libero_10"))
    with refuses(UsageError, "env.no-expert") as refused:
        ExpertPolicy(ExpertConfig(), interface_of(benchmark))
    text = str(refused.value)
    assert "libero_10 task 9" in text
    assert "put the yellow and white mug in the microwave" in text
    assert "--env.task_ids=[0,1,2,3,4,5,6,7,8]" in text
    assert "\n" not in text
