"""``proctor.make_env``: lazy vector environments with LeRobot's names."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from proctor import make_env
from proctor.benchmarks.fake import FakeConfig
from proctor.errors import UsageError


def envs(n_envs: int = 2, use_async_envs: bool = True, **settings: Any) -> dict[int, Any]:
    made = make_env({"type": "fake", "n_tasks": 2, **settings}, n_envs, use_async_envs)
    assert list(made) == ["point"]
    return made["point"]


def workers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
        except psutil.ZombieProcess:  # killed by other tests
            continue
        if "resource_tracker" not in command:
            found.append(child)
    return found


def test_everything_but_the_world_is_known_before_the_first_reset() -> None:
    before = len(workers())
    env = envs(3)[1]
    assert env.num_envs == 3
    assert env.single_action_space.shape == (2,)
    assert env.observation_space["pixels"].shape == (3, 16, 16, 3)
    assert env.single_observation_space["agent_pos"].shape == (2,)
    assert env.metadata["render_fps"] == 10
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert env.call("task_description") == ("reach the goal",) * 3
    assert env.call("_max_episode_steps") == (50,) * 3
    assert len(workers()) == before, "no worker may exist yet"
    env.close()


def test_workers_appear_with_reset_and_are_gone_with_close() -> None:
    first, second = envs(2).values()
    first.reset(seed=1)
    running = len(workers())
    assert isinstance(first._inner, AsyncVectorEnv)
    first.close()
    assert len(workers()) == running - 2
    second.reset(seed=1)
    second.close()
    assert len(workers()) == running - 2


@pytest.mark.parametrize(("n_envs", "use_async_envs"), [(1, True), (2, False)])
def test_one_environment_or_none_async_runs_in_this_process(
    n_envs: int, use_async_envs: bool
) -> None:
    env = envs(n_envs, use_async_envs)[0]
    env.reset(seed=3)
    assert isinstance(env._inner, SyncVectorEnv)
    env.close()


def test_sync_and_async_agree_with_each_other_and_with_their_spaces() -> None:
    seen = []
    for use_async_envs in (True, False):
        env = envs(2, use_async_envs, episode_length=4)[0]
        env.action_space.seed(0)
        observation, _ = env.reset(seed=5)
        trace = [observation["agent_pos"]]
        for _ in range(9):
            observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
            assert env.observation_space.contains(observation)
            assert reward.shape == terminated.shape == truncated.shape == (2,)
            assert info["is_success"].dtype == bool
            trace += [observation["agent_pos"], reward, truncated]
        assert env.render()[0].shape == (16, 16, 3)
        env.close()
        seen.append(np.concatenate([np.ravel(part) for part in trace]))
    assert np.array_equal(*seen)


def test_different_seeds_start_different_worlds_and_equal_ones_the_same() -> None:
    env = envs(2, use_async_envs=False)[0]
    first, _ = env.reset(seed=[7, 8])
    again, _ = env.reset(seed=[7, 7])
    assert not np.array_equal(first["agent_pos"][0], first["agent_pos"][1])
    assert np.array_equal(first["agent_pos"][0], again["agent_pos"][1])
    env.close()


def test_the_single_environment_passes_gymnasiums_own_check() -> None:
    env = envs(1)[0]
    env.reset(seed=0)
    single = env._inner.envs[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(we recommend|not within|Box observation).*")
        check_env(single, skip_render_check=True)
    env.close()


def test_using_it_before_reset_or_after_close_is_said() -> None:
    env = envs(2)[0]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(env.action_space.sample())
    env.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        env.reset()


def test_a_config_object_works_as_well_as_settings() -> None:
    assert list(make_env(FakeConfig(n_tasks=3))["point"]) == [0, 1, 2]


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(UsageError) as refused:
        make_env({"type": "fake", "n_taks": 2})
    assert "--env.n_tasks" in str(refused.value)


def test_killing_an_environment_with_a_dead_worker_neither_waits_nor_warns() -> None:
    before = len(workers())
    env = envs(2, faults={"0/0/1": "exit"})[0]
    env.reset(seed=[1000, 1001])
    with pytest.raises((EOFError, ConnectionResetError)):
        env.step(np.zeros((2, 2), np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.kill()
    env.close()  # nothing is left of it
    assert len(workers()) <= before + 1, "the fork server may stay, no worker"
