"""The benchmark gym_hil: gym_hil's own numbers, seeds that hold, the expert, and its images."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.base import PenalisedSim
from proctor.benchmarks.gym_hil.benchmark import GymHil, GymHilConfig, ObsType
from proctor.benchmarks.gym_hil.tasks import CAMERAS
from proctor.errors import UsageError
from proctor.features import ENVIRONMENT_STATE, STATE
from proctor.rl.environment.environments import SimOnlineEnv
from proctor.testing import check_sim

pytestmark = pytest.mark.sim
pytest.importorskip("gym_hil")

_STATES = GymHilConfig(obs_type=ObsType.STATE)


def _actions(seed: int, n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    low, high = GymHil.action.bounds
    return [rng.uniform(low, high).astype(np.float32) for _ in range(n)]


def _reference(task: str) -> Any:
    """Return gym_hil's own environment of a task, without a renderer."""
    from gym_hil.envs import PandaArrangeBoxesGymEnv, PandaPickCubeGymEnv
    from gym_hil.wrappers.factory import wrap_env

    from proctor.benchmarks.gym_hil.sim import _without_renderer

    with _without_renderer():
        made = (
            PandaPickCubeGymEnv(random_block_position=True)
            if task.startswith("PandaPick")
            else PandaArrangeBoxesGymEnv()
        )
    return wrap_env(made, gripper_penalty=-0.05, reset_delay_seconds=0.0)


@pytest.mark.parametrize("task", ["PandaPickCube-v0", "PandaArrangeBoxes-v0"])
def test_steps_have_the_bits_of_gym_hil(task: str) -> None:
    benchmark = GymHil(replace(_STATES, task=task, gripper_penalty=-0.05))
    (row,) = benchmark.tasks()
    sim, reference = benchmark.make_sim(row), _reference(task)
    assert isinstance(sim, PenalisedSim)
    np.random.seed(7)
    observed, _ = reference.reset()
    sim.reset(benchmark.spec(row, 0, 7))
    for action in _actions(7, 12):
        ours = sim.observe((STATE, ENVIRONMENT_STATE))
        np.testing.assert_array_equal(ours[STATE], observed["agent_pos"])
        np.testing.assert_array_equal(ours[ENVIRONMENT_STATE], observed["environment_state"])
        step = sim.step(action)
        observed, reward, terminated, _, info = reference.step(action)
        assert (step.reward, step.terminated) == (reward, terminated)
        assert sim.discrete_penalty() == info["discrete_penalty"]


def test_seeds_place_the_cube() -> None:
    benchmark = GymHil(_STATES)
    (task,) = benchmark.tasks()
    sim = benchmark.make_sim(task)
    places = []
    for seed in (1, 2, 1):
        np.random.seed(0)  # the global generator of the process has no effect
        sim.reset(benchmark.spec(task, 0, seed))
        places.append(sim.observe([ENVIRONMENT_STATE])[ENVIRONMENT_STATE])
    np.testing.assert_array_equal(places[0], places[2])
    assert np.abs(places[0] - places[1]).max() > 1e-3


def test_the_fixed_cube_is_in_one_place() -> None:
    benchmark = GymHil(replace(_STATES, random_block_position=False))
    (task,) = benchmark.tasks()
    sim = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 5))
    place = sim.observe([ENVIRONMENT_STATE])[ENVIRONMENT_STATE]
    np.testing.assert_allclose(place[:2], [0.5, 0.0], atol=1e-6)


def test_the_expert_picks_the_cube_after_a_disturbance() -> None:
    env = SimOnlineEnv(GymHil(_STATES), GymHil(_STATES).tasks()[0])
    solved = []
    for seed in range(6):
        env.reset(seed)
        disturbed = seed % 2
        for action in _actions(seed, 6 * disturbed):
            env.step(np.array([*action[:3], 2.0]))  # the gripper is closed then
        expert = env.expert()
        while True:
            step = env.step(expert(env.privileged()))
            if step.terminated or step.truncated:
                break
        solved.append(step.info.success)
    assert all(solved)


def test_it_keeps_the_contract() -> None:
    check_sim(GymHil(_STATES), n_steps=4)


def test_images_show_the_cube() -> None:
    config = replace(GymHilConfig(), observation_height=48, observation_width=64)
    benchmark = GymHil(config)
    env = SimOnlineEnv(benchmark, benchmark.tasks()[0], keys=tuple(CAMERAS))
    first, second = env.reset(0), env.reset(1)
    assert all(image.shape == (3, 48, 64) for image in first.values())
    assert any((first[key] != second[key]).any() for key in first)
    env.close()


def test_the_boxes_have_no_expert() -> None:
    benchmark = GymHil(replace(_STATES, task="PandaArrangeBoxes-v0"))
    with pytest.raises(UsageError) as refused:
        benchmark.expert(benchmark.tasks()[0])
    assert refused.value.code == "env.no-expert"


@pytest.mark.parametrize(
    "change",
    [
        {"task": "Stack-v0"},
        {"episode_length": 0},
        {"observation_width": 0},
        {"gripper_penalty": 0.1},
        {"shadow_map": 100},
    ],
)
def test_bad_flags_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        GymHil(replace(GymHilConfig(), **change))
