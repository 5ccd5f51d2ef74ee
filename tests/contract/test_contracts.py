"""Contract checks of `proctor.testing` for every benchmark and policy, and their own tests."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor import make_env, plugins
from proctor.benchmarks.base import BenchmarkPlugin, interface_of
from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim
from proctor.cli import main
from proctor.config.builder import benchmark_config_from
from proctor.errors import PluginError
from proctor.features import Array, Observation
from proctor.policies.base import Batch
from proctor.policies.scripted.random import RandomConfig, RandomPolicy
from proctor.testing import check_policy, check_sim
from proctor.types import EpisodeSpec, Task
from tests.contract.numbered_world import PLUGIN as NUMBERED
from tests.unit.worker.point_world import PLUGIN as POINT
from tests.unit.worker.point_world import PointConfig


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


def test_the_so101_keeps_the_contract() -> None:
    pytest.importorskip("mujoco")
    plugin = plugins.find_benchmark("so101")
    benchmark = plugin.make(benchmark_config_from({"type": "so101", "obs_type": "state"}))
    check_sim(benchmark, n_steps=8)


@pytest.mark.sim
def test_the_so101_keeps_the_contract_with_images() -> None:
    pytest.importorskip("mujoco")
    settings = {"type": "so101", "observation_height": 32, "observation_width": 48}
    benchmark = plugins.find_benchmark("so101").make(benchmark_config_from(settings))
    check_sim(benchmark, n_steps=4)


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


class Nudging(Fake):
    """Its simulator changes when the report asks where things are."""

    def make_sim(self, task: Task) -> FakeSim:
        class Sim(FakeSim):
            def coordinates(self) -> dict[str, float]:
                self._point = self._point + 1e-9
                return super().coordinates()

        return Sim(self._config, task)


class Nowhere(Fake):
    """Its simulator gives a position that is not finite."""

    def make_sim(self, task: Task) -> FakeSim:
        class Sim(FakeSim):
            def coordinates(self) -> dict[str, float]:
                return {"block x": float("nan")}

        return Sim(self._config, task)


class Numbered(Fake):
    """Its episodes depend on their index."""

    def make_sim(self, task: Task) -> FakeSim:
        class Sim(FakeSim):
            def reset(self, spec: EpisodeSpec) -> None:
                super().reset(spec)
                self._point = self._point + spec.index

        return Sim(self._config, task)


class Shifting(Fake):
    """Its simulator changes when its start is measured."""

    def make_sim(self, task: Task) -> FakeSim:
        class Sim(FakeSim):
            def start_state(self) -> dict[str, float]:
                self._point = self._point + 1e-9
                return super().start_state()

        return Sim(self._config, task)


class Talkative(Fake):
    """Its starts have more numbers than there may be."""

    def make_sim(self, task: Task) -> FakeSim:
        class Sim(FakeSim):
            def start_state(self) -> dict[str, float]:
                return {f"number {n}": 0.0 for n in range(65)}

        return Sim(self._config, task)


class Renaming(Fake):
    """Its starts have other names in every episode."""

    def make_sim(self, task: Task) -> FakeSim:
        class Sim(FakeSim):
            def start_state(self) -> dict[str, float]:
                return {f"number {self._point[0]}": 0.0}

        return Sim(self._config, task)


class Vague(Fake):
    """Its tolerance does not tell different starts from equal ones."""

    def make_sim(self, task: Task) -> FakeSim:
        class Sim(FakeSim):
            start_tolerance = 0.2

        return Sim(self._config, task)


class Misshapen(Fake):
    """Its images have another shape than declared."""

    def make_sim(self, task: Task) -> FakeSim:
        class Sim(FakeSim):
            def observe(self, keys: Any) -> Observation:
                return {key: array[:1] for key, array in super().observe(keys).items()}

        return Sim(self._config, task)


class AllTasks(Fake):
    """It lists all its tasks, whatever --env.task_ids says."""

    def __init__(self, config: FakeConfig) -> None:
        super().__init__(replace(config, task_ids=None))


class Wrapped:
    """It lists all its tasks too, and keeps no config of its own."""

    def __init__(self, config: FakeConfig) -> None:
        self._inner = [AllTasks(config)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner[0], name)


class AnyTask(Fake):
    """It selects tasks by their ids, and takes ids that no task has."""

    def __init__(self, config: FakeConfig) -> None:
        known = [i for i in config.task_ids or [0] if i < config.n_tasks]
        super().__init__(replace(config, task_ids=known or None))


ALL_TASKS = BenchmarkPlugin(FakeConfig, AllTasks, "ignores --env.task_ids")


def test_a_run_with_task_ids_that_a_benchmark_ignores_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [f"--env.type={__name__}:ALL_TASKS", "--env.n_tasks=3", "--policy.type=zero"]
    words += ["--eval.use_async_envs=false", "--eval.n_episodes=1"]
    assert main(["eval", *words, f"--output_dir={tmp_path / 'all'}"]) == 0
    capsys.readouterr()
    assert main(["eval", *words, "--env.task_ids=[1]", f"--output_dir={tmp_path / 'one'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--env.task_ids=[1] is ignored by AllTasks: its tasks have point 0" in line
    assert not (tmp_path / "one").exists()
    env = {"type": f"{__name__}:ALL_TASKS", "n_tasks": 3, "task_ids": [1]}
    with pytest.raises(PluginError):
        make_env(env)


def test_a_benchmark_that_keeps_no_config_is_checked_with_the_one_that_is_passed() -> None:
    benchmark: Any = Wrapped(FakeConfig(n_tasks=2))
    with pytest.raises(AssertionError, match="pass config="):
        check_sim(benchmark)
    with pytest.raises(AssertionError, match="task_ids"):
        check_sim(benchmark, config=FakeConfig(n_tasks=2))


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (AllTasks, r"--env.task_ids=\[1\] selects"),
        (AnyTask, r"--env.task_ids=\[1000000\], which no task has"),
        (Leaking, "a used simulator gives another episode than a fresh one"),
        (Deaf, "two specs give the same episode"),
        (Meddling, "observing changes the episode"),
        (Nudging, "coordinates.. changes the episode"),
        (Nowhere, "coordinates.. gives nan"),
        (Numbered, "depends on its index"),
        (Shifting, "start_state.. changes the episode"),
        (Talkative, "start_state.. gives more than 64 numbers"),
        (Renaming, "start_state.. names other numbers"),
        (Vague, "two starts are .* apart"),
        (Misshapen, "has shape"),
    ],
)
def test_the_contract_catches_a_broken_benchmark(broken: type[Fake], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_sim(broken(FakeConfig(n_tasks=2)))


def test_a_world_of_another_interpreter_keeps_the_contract() -> None:
    config = PointConfig(python=sys.executable)
    check_sim(POINT.maker(config)(), config=config, make=lambda other: POINT.maker(other)())


def test_the_contract_catches_a_world_whose_starts_depend_on_the_index() -> None:
    config = PointConfig(python=sys.executable)
    with pytest.raises(AssertionError, match="depends on its index"):
        check_sim(NUMBERED.maker(config)(), config=config, make=lambda c: NUMBERED.maker(c)())


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
