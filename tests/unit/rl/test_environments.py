"""Environments of online learning, on the fake benchmark."""

from dataclasses import replace

import numpy as np
import pytest

from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.config.sections.online import RewardSource
from proctor.errors import UsageError
from proctor.features import ENVIRONMENT_STATE, IMAGE, STATE
from proctor.rl.environment.environments import SimOnlineEnv

_CONFIG = FakeConfig(episode_length=6)


def _env(config: FakeConfig = _CONFIG, **options: object) -> SimOnlineEnv:
    benchmark = Fake(config)
    return SimOnlineEnv(benchmark, benchmark.tasks()[0], **options)  # type: ignore[arg-type]


def test_images_have_the_layout_of_networks() -> None:
    env = _env(replace(_CONFIG, image_size=8), keys=[IMAGE, STATE])
    observation = env.reset(3)
    assert observation[IMAGE].shape == (3, 8, 8)
    assert observation[IMAGE].dtype == np.uint8
    assert observation[STATE].dtype == np.float32


def test_equal_seeds_give_equal_episodes() -> None:
    first, second = _env(), _env()
    first.reset(1)
    first.step(np.ones(2))
    np.testing.assert_array_equal(first.reset(5)[STATE], second.reset(5)[STATE])
    np.testing.assert_array_equal(
        first.step(np.ones(2)).observation[STATE], second.step(np.ones(2)).observation[STATE]
    )


def test_the_step_limit_truncates_and_does_not_terminate() -> None:
    env = _env(replace(_CONFIG, endless=True), max_steps=3)
    env.reset(0)
    ends = [env.step(np.zeros(2))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


def test_success_is_the_reward_on_request() -> None:
    env = _env(replace(_CONFIG, episode_length=100), reward=RewardSource.SUCCESS)
    env.reset(2)
    expert = env.expert()
    rewards = []
    while True:
        step = env.step(expert(env.privileged()))
        rewards.append(step.reward)
        if step.terminated:
            break
    assert rewards[-1] == 1.0
    assert set(rewards[:-1]) <= {0.0}
    assert step.info.success


def test_the_reward_of_the_environment_is_the_default() -> None:
    env = _env()
    env.reset(2)
    assert env.step(np.zeros(2)).reward < 0


def test_global_generators_of_the_process_stay_untouched() -> None:
    np.random.seed(11)
    expected = np.random.random(3)
    np.random.seed(11)
    env = _env()
    env.reset(0)
    env.step(np.zeros(2))
    np.testing.assert_array_equal(np.random.random(3), expected)


def test_an_unknown_observation_is_refused() -> None:
    with pytest.raises(UsageError) as refused:
        _env(keys=["observation.smell"])
    assert refused.value.code == "rl.unknown-observation"


def test_states_are_observed_by_default() -> None:
    assert set(_env().features) == {IMAGE, STATE}
    assert ENVIRONMENT_STATE in Fake(_CONFIG).features()
