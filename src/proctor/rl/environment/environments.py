"""Environments of online learning: what an actor drives, one step at a time.

OnlineEnv      the interface: reset, step, close
SimOnlineEnv   a task of any benchmark; the simulator runs in this process
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from proctor.benchmarks.base import Benchmark, PenalisedSim, Sim
from proctor.benchmarks.guarded_sim import GuardedSim
from proctor.benchmarks.starts import measured_start, observed_start, start_keys, start_source
from proctor.benchmarks.training_starts import seeded_spec, unpublished
from proctor.config.sections.online import RewardSource
from proctor.errors import UsageError
from proctor.features import (
    ActionSpec,
    Array,
    Expert,
    Feature,
    FeatureKind,
    Observation,
    observed_keys,
)
from proctor.starts import DemonstrationStart
from proctor.system.global_rng import SEED_BEFORE_RESET, IsolatedRng, seed_global_rng
from proctor.system.platform.environment import temporary_environment
from proctor.types import EpisodeSpec, Task, planned_start


@dataclass(frozen=True)
class StepInfo:
    """What a step reports besides the observation and the reward."""

    success: bool | None = None
    """None if the environment does not judge."""
    discrete_penalty: float = 0.0
    """Added to the reward of the gripper critic; 0 or negative."""


class EnvStep(NamedTuple):
    """The result of one environment step."""

    observation: Observation
    reward: float
    terminated: bool
    """Success or failure ended the episode."""
    truncated: bool
    """The time limit ended the episode."""
    info: StepInfo


class OnlineEnv(Protocol):
    """An environment of an actor. Images are uint8 [C, H, W], other observations float32."""

    @property
    def features(self) -> Mapping[str, Feature]:
        """Observed features by key; images as benchmarks declare them, [H, W, C]."""

    @property
    def action(self) -> ActionSpec:
        """Size, range and names of actions."""

    @property
    def fps(self) -> int:
        """Steps per second."""

    @property
    def task(self) -> str:
        """Language instruction."""

    @property
    def start(self) -> str | None:
        """Where the episode started (``DemonstrationStart``); None: it was not measured."""

    def reset(self, seed: int) -> Observation:
        """Start the episode that ``seed`` determines; return its first observation."""

    def step(self, action: Array) -> EnvStep:
        """Execute ``action``, float32 [A]."""

    def close(self) -> None:
        """Free the simulator or disconnect the robot."""


class SimOnlineEnv:
    """One task of a benchmark in this process. The simulator opens at the first reset."""

    def __init__(
        self,
        benchmark: Benchmark,
        task: Task,
        keys: Sequence[str] | None = None,
        reward: RewardSource = RewardSource.ENVIRONMENT,
        max_steps: int | None = None,
    ) -> None:
        """Observe ``keys`` (default: cameras and state); end episodes after ``max_steps``."""
        if reward is RewardSource.SUCCESS and not benchmark.judged:
            raise UsageError(
                f"{benchmark.name} does not judge success; use its own reward",
                code="rl.no-success-signal",
            )
        offered = benchmark.features()
        wanted = observed_keys(offered) if keys is None else tuple(keys)
        if absent := [key for key in wanted if key not in offered]:
            raise UsageError(
                f"{benchmark.name} has no {absent[0]} (it has {', '.join(offered)})",
                code="rl.unknown-observation",
            )
        self.features = {key: offered[key] for key in wanted}
        self.action, self.fps, self.task = benchmark.action, task.fps, task.instruction
        self._benchmark, self._task, self._reward = benchmark, task, reward
        self._max_steps = task.max_steps if max_steps is None else min(max_steps, task.max_steps)
        self._sim: Sim | None = None
        self._penalised: PenalisedSim | None = None
        self._steps = 0
        self._source = start_source(benchmark)
        self.start: str | None = None
        self._rng = IsolatedRng()
        self._variables: dict[str, str] | None = None

    def check(self) -> None:
        """Check that the simulator is installed and that images can be rendered."""
        self._variables = self._benchmark.preflight(tuple(self.features))

    def reset(self, seed: int) -> Observation:
        """Start the episode with ``seed``."""
        if self._variables is None:
            self.check()
        with temporary_environment(self._variables or {}), self._rng.activated():
            if self._sim is None:
                seed_global_rng(SEED_BEFORE_RESET)
                made = self._benchmark.make_sim(self._task)
                self._sim = GuardedSim(made, self._benchmark.features())
                self._penalised = made if isinstance(made, PenalisedSim) else None
            spec = unpublished(self._benchmark, seeded_spec(self._benchmark, self._task, seed))
            seed_global_rng(spec.seed)  # some simulators draw from the global generators
            self._sim.reset(spec)
            self._steps = 0
            self.start = self._measured(spec)
            return self._observed()

    def step(self, action: Array) -> EnvStep:
        """Execute one action and observe."""
        with self._simulating() as sim:
            result = sim.step(np.asarray(action, np.float32))
            self._steps += 1
            penalty = 0.0 if self._penalised is None else self._penalised.discrete_penalty()
            judged = self._reward is RewardSource.SUCCESS
            return EnvStep(
                self._observed(),
                float(bool(result.success)) if judged else float(result.reward),
                bool(result.terminated),
                not result.terminated and self._steps >= self._max_steps,
                StepInfo(result.success, penalty),
            )

    def _measured(self, spec: EpisodeSpec) -> str:
        assert self._sim is not None
        start = measured_start(self._sim, self._sim.physics())
        if start is None:
            keys = start_keys(self._benchmark.features())
            start = observed_start(self._sim.observe(keys))
        task = planned_start(spec, start).clean_task
        return DemonstrationStart(self._source, *task, spec.world, start).to_json()

    def privileged(self) -> Observation:
        """Return what the benchmark's expert observes now, as the simulator gives it."""
        with self._simulating() as sim:
            return sim.observe(self._benchmark.expert_inputs)

    def expert(self) -> Expert:
        """Return a fresh scripted expert of the task."""
        return self._benchmark.expert(self._task)

    def close(self) -> None:
        """Close the simulator."""
        if self._sim is not None:
            self._sim.close()
            self._sim = None

    @contextmanager
    def _simulating(self) -> Iterator[Sim]:
        """Yield the simulator, with the global generators that belong to it."""
        assert self._sim is not None, "reset comes first"
        with self._rng.activated():
            yield self._sim

    def _observed(self) -> Observation:
        assert self._sim is not None
        observation = self._sim.observe(tuple(self.features))
        return {
            key: to_network_layout(value, self.features[key]) for key, value in observation.items()
        }


def to_network_layout(value: Array, feature: Feature) -> Array:
    """Return an image as uint8 [C, H, W], another feature as float32."""
    if feature.kind is FeatureKind.VISUAL:
        return np.ascontiguousarray(np.moveaxis(value, -1, 0))
    return np.asarray(value, np.float32)
