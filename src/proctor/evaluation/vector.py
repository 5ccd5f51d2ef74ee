"""The public gymnasium API: ``make_env`` gives one lazy vector environment per task.

Spaces, metadata and task descriptions are known at once; simulators and their processes appear at
the first ``reset`` and are gone with ``close``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from proctor import plugins
from proctor.benchmarks.base import Benchmark, BenchmarkConfig, Sim, pictures_to_show
from proctor.config.evaluation import benchmark_config_from
from proctor.engine.breakage import cause_of, describe
from proctor.engine.episode import Episode, check_observation
from proctor.engine.pool import start_fork_server, without_main_module
from proctor.engine.worker import die_with_the_parent
from proctor.errors import WorkerError, plain_text
from proctor.evaluation.raw_names import space_of, to_raw
from proctor.features import Array, Feature, FeatureKind
from proctor.machine.generators import WHILE_OPENING, OwnGenerators, seed_generators
from proctor.types import EpisodeSpec, Task


def make_env(
    config: BenchmarkConfig | Mapping[str, Any],
    n_envs: int = 1,
    use_async_envs: bool = True,
) -> dict[str, dict[int, VectorEnv[Any, Any, Any]]]:
    """Return ``{suite: {task_id: vector environment}}`` for every configured task.

    ``config`` is a benchmark config or its settings, ``{"type": "metaworld", "task": "easy"}``.
    Observations have the names LeRobot's environments use: ``pixels``, ``agent_pos``.

    Raises:
        UsageError: the config names something that does not exist.
    """
    if not isinstance(config, BenchmarkConfig):
        config = benchmark_config_from(config)
    make_benchmark = partial(plugins.find_benchmark(config.type).make, config)
    benchmark = make_benchmark()
    keys = observed_keys(benchmark.features())
    environment = benchmark.preflight(keys)
    envs: dict[str, dict[int, VectorEnv[Any, Any, Any]]] = {}
    for task in benchmark.tasks():
        parts = SimEnvParts(make_benchmark, task, keys, environment)
        env = LazyVectorEnv(parts, n_envs, use_async_envs=use_async_envs)
        envs.setdefault(task.suite, {})[task.task_id] = env
    return envs


def observed_keys(features: Mapping[str, Feature]) -> tuple[str, ...]:
    """Return what an environment shows: cameras and state; without cameras, the world's state."""
    kinds = {FeatureKind.STATE, FeatureKind.VISUAL}
    if all(feature.kind is not FeatureKind.VISUAL for feature in features.values()):
        kinds.add(FeatureKind.ENV)
    return tuple(key for key, feature in features.items() if feature.kind in kinds)


@dataclass(frozen=True)
class SimEnvParts:
    """What a sub-environment is made from; picklable."""

    make_benchmark: Callable[[], Benchmark]
    task: Task
    keys: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


class SimEnv(gymnasium.Env[Any, Any]):
    """A benchmark's task as a gymnasium environment; the simulator opens at the first reset.

    ``reset(options={"specs": [...]})`` takes the spec at this environment's position and plays that
    one episode: the reset that a vector environment does by itself afterwards parks the
    environment, which then neither steps nor renders until it is given another spec.
    """

    def __init__(self, parts: SimEnvParts, position: int = 0, *, alone: bool = False) -> None:
        """``alone`` says that nothing else is in this process."""
        self._parts = parts
        self._generators: OwnGenerators | None = None if alone else OwnGenerators()
        self._position = position
        self._benchmark = parts.make_benchmark()
        features = self._benchmark.features()
        self._features = {key: features[key] for key in parts.keys}
        self.task_description = parts.task.instruction
        self.task = parts.task.name
        self._max_episode_steps = parts.task.max_steps
        self._camera = next(iter(pictures_to_show(features)), None)
        modes = [] if self._camera is None else ["rgb_array"]
        self.metadata = {"render_modes": modes, "render_fps": parts.task.fps}
        self.render_mode = modes[0] if modes else None
        self.observation_space = space_of(self._features)
        low, high = self._benchmark.action.bounds
        self.action_space = spaces.Box(low.copy(), high.copy(), dtype=np.float32)
        self._sim: Sim | None = None
        self._episode: Episode | None = None
        self._only_given_specs = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start the episode that ``seed`` or ``options["specs"]`` determines."""
        super().reset(seed=seed)
        spec = self._next_spec(seed, options or {})
        if spec is None:
            self._episode = None
            return self._nothing(), {"is_success": False}
        with self._plainly(), self._own_generators():
            self._begin(spec)
            return self._observe(), {"is_success": False}

    def _begin(self, spec: EpisodeSpec) -> None:
        if self._sim is None:
            seed_generators(WHILE_OPENING)
            self._sim = self._benchmark.make_sim(spec.task)
        self._episode = Episode(self._sim, spec, self._benchmark.action)
        self._episode.reset()

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take one step and observe everything, as gymnasium environments do."""
        if self._episode is None:
            return self._nothing(), 0.0, False, False, {"is_success": False}
        with self._plainly(), self._own_generators():
            return self._step_or_diverge(self._episode, action)

    def _step_or_diverge(
        self, episode: Episode, action: Array
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        try:
            return self._step(episode, action)
        except Exception as error:
            if not (self._only_given_specs and self._breaks_again(episode, error)):
                raise
            result = episode.diverged(self._position)
            result.error, result.attempts = describe(error), 2
            self._discard()
            info = {"is_success": False, "result": result}
            return self._nothing(), 0.0, True, False, info

    def _step(
        self, episode: Episode, action: Array
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        step = episode.step(action)
        observation = self._observe()
        info: dict[str, Any] = {"is_success": step.success}
        if episode.ended:
            info["result"] = episode.result(self._position)
        truncated = episode.ended and not step.terminated
        return observation, step.reward, step.terminated, truncated, info

    def _breaks_again(self, broken: Episode, error: Exception) -> bool:
        """Play the episode on a new simulator; whether that one breaks there in the same way.

        Then the policy did it (see ``engine.breakage``). Else the error stands: nothing here can
        replace a simulator in the middle of an episode.
        """
        cause = cause_of(error)
        if cause is None:
            return False
        self._discard()
        self._begin(broken.spec)
        assert self._episode is not None
        try:
            for action in broken.actions:
                self._step(self._episode, action)
        except Exception as second:  # noqa: BLE001  what it is decides, and the first is reported
            return (self._episode.given, cause_of(second)) == (broken.given, cause)
        return False

    def render(self) -> Array | None:
        """Return what a video shows, or the first camera; None without either."""
        if self._camera is None:
            return None
        if self._sim is None:
            return np.zeros(self._benchmark.features()[self._camera].shape, np.uint8)
        with self._own_generators():
            return self._sim.observe([self._camera])[self._camera]

    def close(self) -> None:
        """Close the simulator."""
        if self._sim is not None:
            self._sim.close()
        self._sim = self._episode = None

    def _discard(self) -> None:
        """Let go of a simulator that broke."""
        with contextlib.suppress(Exception):  # it broke, and that has been reported
            self.close()
        self._sim = self._episode = None

    @contextlib.contextmanager
    def _plainly(self) -> Iterator[None]:
        """Make errors fit for a terminal where specs are given, and a run waits for the episode.

        gymnasium prints what a sub-environment raises, of whatever length and content.
        """
        try:
            yield
        except Exception as error:
            if not self._only_given_specs:
                raise
            raise WorkerError(plain_text(describe(error))) from None

    def _own_generators(self) -> contextlib.AbstractContextManager[None]:
        """Leave the generators of whoever else is in this process alone."""
        return contextlib.nullcontext() if self._generators is None else self._generators.in_use()

    def _next_spec(self, seed: int | None, options: dict[str, Any]) -> EpisodeSpec | None:
        if "specs" in options:
            self._only_given_specs = True
            spec: EpisodeSpec | None = options["specs"][self._position]
            return spec
        if seed is None and self._only_given_specs:
            return None
        self._only_given_specs = False
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        return self._benchmark.spec(self._parts.task, 0, seed)

    def _observe(self) -> dict[str, Any]:
        assert self._sim is not None
        assert self._episode is not None
        self._episode.renders += sum(f.kind is FeatureKind.VISUAL for f in self._features.values())
        observation = self._sim.observe(self._parts.keys)
        check_observation(observation, self._features)
        return to_raw(observation)

    def _nothing(self) -> dict[str, Any]:
        return to_raw({k: np.zeros(f.shape, f.dtype) for k, f in self._features.items()})


class LazyVectorEnv(VectorEnv[Any, Any, Any]):
    """A vector environment of one task whose workers appear at the first ``reset``."""

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
        """Call or read ``name`` of every sub-environment; before the first reset, of none alive."""
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
        """Close, without waiting for what the workers are doing, which gymnasium warns of."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.close(**({"terminate": True} if isinstance(self._inner, AsyncVectorEnv) else {}))

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
    alone = os.getpid() != parent  # gymnasium makes one in the parent too, to look at its spaces
    if alone:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
        die_with_the_parent()
        os.environ.update(parts.environment)
    return SimEnv(parts, position, alone=alone)
