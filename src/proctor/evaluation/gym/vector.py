"""The public gymnasium API: ``make_env`` returns one lazy vector environment per task.

Spaces, metadata and task descriptions are available at once. Simulators and their processes start
at the first ``reset`` and end with ``close``.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, overload

import gymnasium
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import batch_space

from proctor import plugins
from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.checks import check_task_ids
from proctor.config.builder import benchmark_config_from
from proctor.engine.processes.forking import start_fork_server, without_main_module
from proctor.engine.worker.worker import exit_with_parent
from proctor.errors import ProctorWarning, UsageError
from proctor.evaluation.gym.lerobot_names import observation_space
from proctor.evaluation.gym.sim_env import SimEnv, SimEnvParts
from proctor.features import Array, observed_keys


class GymEnv(SimEnv):
    """A ``gymnasium.Env`` in this process whose observation is a flat Dict of arrays.

    Several cameras are named ``pixels.NAME``. The simulator opens at the first reset.
    """

    def __init__(self, parts: SimEnvParts) -> None:
        super().__init__(parts)
        self.observation_space = spaces.Dict(_flat(observation_space(self._features).spaces))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode with ``seed``, or with the next seed of this environment."""
        observation, info = super().reset(seed=seed, options=options)
        return _flat(observation), info

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take one step.

        Raises:
            ResetNeeded: there is no episode, or it has ended.
        """
        if self._episode is None or self._episode.ended:
            raise gymnasium.error.ResetNeeded("the episode has ended or not begun; call reset")
        observation, reward, terminated, truncated, info = super().step(action)
        return _flat(observation), reward, terminated, truncated, info


def _flat(nested: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping without nested mappings, joining names by dots."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, dict | spaces.Dict):
            inner = value.spaces if isinstance(value, spaces.Dict) else value
            flat |= {f"{name}.{key}": item for key, item in inner.items()}
        else:
            flat[name] = value
    return flat


@overload
def make_env(
    config: BenchmarkConfig | Mapping[str, Any],
    n_envs: int = 1,
    use_async_envs: bool = True,
    *,
    vector: Literal[True] = True,
) -> dict[str, dict[int, VectorEnv[Any, Any, Any]]]: ...


@overload
def make_env(
    config: BenchmarkConfig | Mapping[str, Any],
    n_envs: int = 1,
    use_async_envs: bool = True,
    *,
    vector: Literal[False],
) -> dict[str, dict[int, gymnasium.Env[Any, Any]]]: ...


def make_env(
    config: BenchmarkConfig | Mapping[str, Any],
    n_envs: int = 1,
    use_async_envs: bool = True,
    *,
    vector: bool = True,
) -> Any:
    """Return ``{suite: {task_id: environment}}`` for every configured task.

    Observations have the names of LeRobot's environments: ``pixels``, ``agent_pos``. Workers of a
    vector environment start at its first ``reset``.

    Args:
        config: a benchmark config or its settings, ``{"type": "metaworld", "task": "easy"}``.
        n_envs: sub-environments of each vector environment.
        use_async_envs: run each sub-environment in a process of its own; False: in this process.
        vector: False gives one ``gymnasium.Env`` per task in this process, with a flat Dict of
            arrays, as stable-baselines3 and gymnasium's wrappers expect.

    Raises:
        UsageError: the config names something that does not exist.
    """
    if not isinstance(n_envs, int) or n_envs < 1:
        raise UsageError(
            f"make_env: n_envs must be a whole number from 1 on, not {n_envs!r}",
            code="flag.out-of-range",
        )
    if not vector and n_envs != 1:
        raise UsageError(
            f"make_env(vector=False) is one environment, not {n_envs}", code="flag.conflict"
        )
    if not isinstance(config, BenchmarkConfig):
        config = benchmark_config_from(config)
    make_benchmark = plugins.benchmark_maker(config)
    benchmark = make_benchmark()
    check_task_ids(benchmark, config.task_ids)
    for line in benchmark.warnings:
        warnings.warn(line, ProctorWarning, stacklevel=2)
    keys = observed_keys(benchmark.features())
    environment = benchmark.preflight(keys)
    envs: dict[str, dict[int, Any]] = {}
    for task in benchmark.tasks():
        parts = SimEnvParts(make_benchmark, task, keys, environment)
        of_suite = envs.setdefault(task.suite, {})
        if vector:
            of_suite[task.task_id] = LazyVectorEnv(parts, n_envs, use_async_envs=use_async_envs)
        else:
            of_suite[task.task_id] = GymEnv(parts)
    return envs


class LazyVectorEnv(VectorEnv[Any, Any, Any]):
    """A vector environment of one task whose workers start at the first ``reset``."""

    def __init__(self, parts: SimEnvParts, n_envs: int, *, use_async_envs: bool) -> None:
        self._parts = parts
        self._async = use_async_envs and n_envs > 1
        self._inner: SyncVectorEnv | AsyncVectorEnv | None = None
        self._prototype = SimEnv(parts)
        self.num_envs = n_envs
        self.metadata = {**self._prototype.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = self._prototype.render_mode
        self.single_observation_space = self._prototype.observation_space
        self.single_action_space = self._prototype.action_space
        self.observation_space = batch_space(self.single_observation_space, n_envs)
        self.action_space = batch_space(self.single_action_space, n_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Start the workers if there are none, and reset every sub-environment."""
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError("reset after close")
        if self._inner is None:
            self._inner = self._open()
        return self._inner.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        """Step every sub-environment."""
        return self._opened().step(actions)

    def render(self) -> Any:
        """Return one frame for each sub-environment."""
        return self._opened().render()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call or read ``name`` of every sub-environment; before the first reset, of a stand-in."""
        if self._inner is not None:
            return tuple(self._inner.call(name, *args, **kwargs))
        value = getattr(self._prototype, name)
        return tuple(
            value(*args, **kwargs) if callable(value) else value for _ in range(self.num_envs)
        )

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read attribute ``name`` of every sub-environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set attribute ``name`` of every sub-environment."""
        self._opened().set_attr(name, values)

    def close_extras(self, **kwargs: Any) -> None:
        """End the workers."""
        if self._inner is not None:
            self._inner.close(**kwargs)
            self._inner = None

    def kill(self) -> None:
        """Close at once, without waiting for workers that are busy or dead."""
        if not isinstance(self._inner, AsyncVectorEnv):
            self.close()
            return
        for process in self._inner.processes:
            process.kill()  # SIGTERM does not end a stopped process
        self._inner._state = AsyncState.DEFAULT  # else it waits for replies of dead workers
        self.close(terminate=True)

    def _opened(self) -> SyncVectorEnv | AsyncVectorEnv:
        if self._inner is None:
            raise gymnasium.error.ResetNeeded("call reset before using the environment")
        return self._inner

    def _open(self) -> SyncVectorEnv | AsyncVectorEnv:
        here = os.getpid()
        makers = [partial(_make_sub_env, self._parts, k, here) for k in range(self.num_envs)]
        if not self._async:
            return SyncVectorEnv(makers)
        start_fork_server(self._prototype._benchmark.preload, self._parts.environment)
        with without_main_module():
            return AsyncVectorEnv(makers, context="forkserver")


def _make_sub_env(parts: SimEnvParts, position: int, parent: int) -> SimEnv:
    alone = os.getpid() != parent  # gymnasium also makes one in the parent to read its spaces
    if alone:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
        exit_with_parent()
        os.environ.update(parts.environment)
    return SimEnv(parts, position, alone=alone)
