"""LIBERO's simulators: the episodes of new environments, at the price of used ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium.utils.env_checker
import numpy as np
import pytest

from proctor import evaluate, make_env
from proctor.benchmarks.libero import Libero, LiberoConfig
from proctor.benchmarks.libero_sim import LiberoSim
from proctor.testing import check_sim
from proctor.types import Array, EpisodeSpec, Task
from tests.sim.libero_reference import course_of, state_of, without_textures

pytestmark = pytest.mark.sim

STATE = "observation.state"
IMAGES = ("observation.images.image", "observation.images.image2")
SAMPLE = {("libero_spatial", 4), ("libero_object", 0)}
"""One task with a drawer that starts open, and one on the floor."""
ALL_TASKS = Libero(LiberoConfig(task="libero_all")).tasks()


def in_test_all(tasks: list[Task]) -> list[Any]:
    """All tasks; those outside the sample only in `make test-all`."""
    return [
        pytest.param(
            task,
            id=f"{task.suite}-{task.task_id}",
            marks=() if task.key in SAMPLE else pytest.mark.slow,
        )
        for task in tasks
    ]


def actions(n_steps: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, (n_steps, 7)).astype(np.float32)


@pytest.fixture
def no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disable")
    without_textures(monkeypatch)


def small(task: Task, **flags: Any) -> Libero:
    size = {"observation_height": 64, "observation_width": 64}
    return Libero(LiberoConfig(task=task.suite, task_ids=[task.task_id], **size, **flags))


@pytest.mark.usefixtures("no_images")
@pytest.mark.parametrize("task", in_test_all(ALL_TASKS))
def test_every_episode_of_a_used_simulator_is_the_first_of_a_new_environment(task: Task) -> None:
    benchmark = small(task)
    first, second = benchmark.spec(task, 0, 1000), benchmark.spec(task, 7, 1000)
    expected = course_of(first, actions(8))
    sim = benchmark.make_sim(task)
    assert isinstance(sim, LiberoSim)
    for spec in (first, second, first):
        sim.reset(spec)
        for moment, action in enumerate(actions(8)):
            if spec == first:
                assert np.array_equal(sim.physics(), expected.qpos[moment])
                seen = sim.observe([STATE])[STATE]
                assert np.allclose(seen, state_of(expected.numbers[moment]), atol=1e-6, rtol=0)
            step = sim.step(action)
            assert step.success == expected.successes[moment] or spec == second
        if spec == first:
            assert np.array_equal(sim._env.sim.model.body_pos, expected.fixtures)
    sim.close()
