"""Contract checks of `proctor.testing` for every benchmark and policy, and their own tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from proctor import plugins
from proctor.benchmarks.base import interface_of
from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim
from proctor.features import Array, Observation
from proctor.policies.base import Batch
from proctor.policies.scripted.random import RandomConfig, RandomPolicy
from proctor.testing import check_policy, check_sim
from proctor.types import EpisodeSpec, Task


@pytest.fixture
def benchmark_under_test() -> Fake:
    return Fake(FakeConfig(n_tasks=2))


def test_the_fake_benchmark_keeps_the_contract(benchmark_under_test: Fake) -> None:
    check_sim(benchmark_under_test)


@pytest.mark.sim
@pytest.mark.parametrize(
    "name", ["push-v3", pytest.param("drawer-open-v3", marks=pytest.mark.slow)]
)
def test_meta_world_keeps_the_contract(name: str) -> None:
    plugin = plugins.find_benchmark("metaworld")
    config: Any = plugin.config(task=name, shadow_map=0)
    config.observation_height = config.observation_width = 48
    benchmark = plugin.make(config)
    (task,) = benchmark.tasks()
    check_sim(benchmark, task, n_steps=5)


@pytest.mark.parametrize("name", ["expert", "random", "zero"])
def test_every_policy_keeps_the_contract(name: str, benchmark_under_test: Fake) -> None:
    plugin = plugins.find_policy(name)
    made = plugin.make(plugin.config(), interface_of(benchmark_under_test))
    check_policy(made, benchmark_under_test)


def test_a_random_policy_with_image_inputs_keeps_the_contract(
    benchmark_under_test: Fake,
) -> None:
    config = RandomConfig(n_action_steps=4, n_obs_steps=2, inputs=["observation.image"])
    check_policy(RandomPolicy(config, interface_of(benchmark_under_test)), benchmark_under_test)


class Leaking(Fake):
    """Its simulator keeps state of the previous episode."""

    def make_sim(self, task: Task) -> FakeSim:
        class Sim(FakeSim):
            def reset(self, spec: EpisodeSpec) -> None:
                before = self._point.copy()
                super().reset(spec)
                self._point = self._point + 1e-9 * before

        return Sim(self._config, task)


class Deaf(Fake):
    """Its episodes do not depend on the seed."""

    def make_sim(self, task: Task) -> FakeSim:
        class Sim(FakeSim):
            def reset(self, spec: EpisodeSpec) -> None:
                super().reset(EpisodeSpec(spec.task, 0, 0))

            def step(self, action: Array) -> Any:
                return super().step(np.zeros(2))

        return Sim(self._config, task)


class Meddling(Fake):
    """Its simulator changes when it is observed."""

    def make_sim(self, task: Task) -> FakeSim:
        class Sim(FakeSim):
            def observe(self, keys: Any) -> Observation:
                if keys:
                    self._point = self._point + 1e-9
                return super().observe(keys)

        return Sim(self._config, task)


class Misshapen(Fake):
    """Its images have another shape than declared."""

    def make_sim(self, task: Task) -> FakeSim:
        class Sim(FakeSim):
            def observe(self, keys: Any) -> Observation:
                return {key: array[:1] for key, array in super().observe(keys).items()}

        return Sim(self._config, task)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (Leaking, "a used simulator gives another episode than a fresh one"),
        (Deaf, "two specs give the same episode"),
        (Meddling, "observing changes the episode"),
        (Misshapen, "has shape"),
    ],
)
def test_the_contract_catches_a_broken_benchmark(broken: type[Fake], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_sim(broken(FakeConfig()))


class Mixing(RandomPolicy):
    """Its batch rows depend on each other."""

    def act(self, batch: Batch) -> Array:
        return super().act(batch) * 0 + np.float32(len(batch.queries) * 0.01)


class Remembering(RandomPolicy):
    """Keeps state of an earlier episode."""

    calls = 0

    def act(self, batch: Batch) -> Array:
        self.calls += 1
        return super().act(batch) * 0 + np.float32(self.calls * 0.01)


@pytest.mark.parametrize(
    ("broken", "sentence"), [(Mixing, "in a batch of 4 than alone"), (Remembering, "other actions")]
)
def test_the_contract_catches_a_broken_policy(
    broken: type[RandomPolicy], sentence: str, benchmark_under_test: Fake
) -> None:
    policy = broken(RandomConfig(), interface_of(benchmark_under_test))
    with pytest.raises(AssertionError, match=sentence):
        check_policy(policy, benchmark_under_test)
