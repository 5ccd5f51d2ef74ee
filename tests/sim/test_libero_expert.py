"""LIBERO's scripted expert on real simulators: it solves tasks, always in the same way."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from proctor.benchmarks.libero import Libero, LiberoConfig
from proctor.benchmarks.libero_assets import find_assets
from proctor.benchmarks.libero_scene import COLUMNS, ENVIRONMENT_STATE, ROWS
from proctor.errors import UsageError
from proctor.policies.expert import ExpertConfig, ExpertPolicy

pytest.importorskip("libero")
pytestmark = pytest.mark.sim


@pytest.fixture(autouse=True)
def assets() -> None:
    try:
        find_assets(None)
    except FileNotFoundError:
        pytest.skip("LIBERO's assets are not on this machine")


def solve(benchmark: Libero, *, times: int = 1) -> list[tuple[bool, str]]:
    """Play episode 0 of the only task in one simulator; return success and digest of each."""
    (task,) = benchmark.tasks()
    sim = benchmark.make_sim(task)
    outcomes = []
    for _ in range(times):
        sim.reset(benchmark.spec(task, 0, 1000))
        expert, digest, success = benchmark.expert(task), hashlib.sha256(), False
        for _ in range(task.max_steps):
            success = sim.step(expert(sim.observe((ENVIRONMENT_STATE,)))).success
            digest.update(sim.physics().tobytes())
            if success:
                break
        outcomes.append((success, digest.hexdigest()))
    sim.close()
    return outcomes


def test_the_expert_puts_a_sauce_into_the_basket_the_same_way_every_time() -> None:
    benchmark = Libero(LiberoConfig(task="libero_object", task_ids=[3]))
    first, second = solve(benchmark, times=2)
    assert first[0]
    assert first == second


def test_the_expert_takes_a_bowl_by_its_rim_and_puts_it_on_the_plate() -> None:
    ((success, _),) = solve(Libero(LiberoConfig(task="libero_spatial", task_ids=[0])))
    assert success


def test_the_privileged_table_shows_the_hand_and_every_part_and_nothing_else() -> None:
    benchmark = Libero(LiberoConfig(task="libero_object", task_ids=[3]))
    (task,) = benchmark.tasks()
    sim = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 1000))
    table = sim.observe((ENVIRONMENT_STATE,))[ENVIRONMENT_STATE]
    sim.close()
    assert table.shape == (ROWS, COLUMNS)
    things = 9  # the hand, seven objects and the inside of the basket
    assert (np.abs(np.linalg.norm(table[:things, 3:7], axis=1) - 1) < 1e-9).all()
    assert not table[things + 1 :].any()


def test_a_task_without_a_skill_is_refused_in_one_line_that_names_those_it_can_do() -> None:
    benchmark = Libero(LiberoConfig(task="libero_10"))
    with pytest.raises(UsageError) as refusal:
        ExpertPolicy(ExpertConfig(), benchmark)
    text = str(refusal.value)
    assert "libero_10 task 9 (put the yellow and white mug in the microwave" in text
    assert "--env.task_ids=[0,1,2,3,4,5,6,7,8]" in text
    assert "\n" not in text
