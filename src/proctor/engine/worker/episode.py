"""One episode on one simulator: executes chunks, observes the policy's inputs, keeps score."""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor.benchmarks.base import ComingSteps, Sim
from proctor.benchmarks.starts import measured_start, observed_start
from proctor.engine.worker.state_sampler import StateSampler
from proctor.errors import SimulatorFault, WorkerError
from proctor.features import ActionSpec, Array, Feature, FeatureKind, Observation
from proctor.system import clock
from proctor.system.global_rng import seed_global_rng
from proctor.types import (
    EpisodeResult,
    EpisodeSpec,
    Outcome,
    Start,
    StepResult,
    Timings,
    keeps_minimum,
)

DIGEST = 2
"""Version of the digest. Version 1 did not hash the initial state, and of the final state the
joints only. Run folders of that version do not name it."""
_STEP = struct.Struct("<d?")
"""A step in the digest: reward and success."""


class Episode:
    """The score of one running episode. Knows no processes, no policy and no rendering."""

    def __init__(self, sim: Sim, spec: EpisodeSpec, action: ActionSpec) -> None:
        self.spec = spec
        self.steps = 0
        self.given = 0
        """Actions given to the simulator: one more than ``steps`` if it failed in a step."""
        self.ended = False
        self.renders = 0
        self.start: Start | None = None
        """The measured start; None before the reset, or if the simulator shows no state."""
        self.timings = Timings()
        self._sim = sim
        self._action = action
        self._success: bool | None = False
        self._solved_after: int | None = None
        self._sum_reward = 0.0
        self._max_reward: float | None = None
        self._scores: dict[str, float] | None = None
        self._actions = np.empty((spec.task.max_steps, action.size), np.float32)
        self._rewards = np.empty(spec.task.max_steps, np.float32)
        self._sampler = StateSampler(sim, spec.task.max_steps)
        self._hash = hashlib.blake2b(digest_size=16)
        self._started_at = clock.now()

    def reset(self) -> None:
        """Reset the simulator to the spec's initial state."""
        start = time.perf_counter()
        seed_global_rng(self.spec.seed)  # some simulators use global RNGs
        self._sim.reset(self.spec)
        world = self._hash_world()
        self.start = measured_start(self._sim, world)
        self._sampler.begin(world)
        self.timings.sim_s += time.perf_counter() - start

    def step(self, action: Array) -> StepResult:
        """Execute one action and count it; the simulator or the step limit may end the episode."""
        self._actions[self.given] = action
        self.given += 1
        start = time.perf_counter()
        step = self._sim.step(action)
        self.timings.sim_s += time.perf_counter() - start
        self._rewards[self.steps] = step.reward
        self.steps += 1
        self._success = step.success
        if step.success and self._solved_after is None:
            self._solved_after = self.steps
        self._sum_reward += step.reward
        if self._max_reward is None or step.reward > self._max_reward:
            self._max_reward = step.reward
        if step.scores is not None:
            self._scores = _best_scores(self._scores or {}, step.scores)
        self._hash.update(_STEP.pack(step.reward, bool(step.success)))
        self._sampler.after_step(self.steps, self._max_reward)
        self.ended = step.terminated or self.steps >= self.spec.task.max_steps
        return step

    @property
    def actions(self) -> Array:
        """All actions given to the simulator, [given, action size]."""
        return self._actions[: self.given]

    def result(self, worker: int) -> EpisodeResult:
        """Return the result of the finished episode."""
        world = self._hash_world()
        result = self._tally(worker, self._outcome)
        result.rewards = self._rewards[: self.steps]
        result.states = self._sampler.end(self.steps, world, self._max_reward)
        result.digest, result.success_at_end = self._hash.hexdigest(), self._success
        result.steps_to_success, result.actions = self._solved_after, self.actions
        return result

    @property
    def _outcome(self) -> Outcome:
        if self._success is None:
            return Outcome.ENDED
        return Outcome.FAILURE if self._solved_after is None else Outcome.SUCCESS

    def diverged(self, worker: int) -> EpisodeResult:
        """Return the result up to the simulator's failure; the failing action counts as a step."""
        result = self._tally(worker, Outcome.DIVERGED)
        result.steps = self.given
        return result

    def _hash_world(self) -> Array:
        """Add the simulator's current state to the digest, and return it."""
        world = self._sim.physics()
        if not np.isfinite(world).all():
            raise SimulatorFault(f"the simulator's world is not finite after step {self.steps}")
        self._hash.update(world.tobytes())
        return world

    def _tally(self, worker: int, outcome: Outcome) -> EpisodeResult:
        return EpisodeResult(
            spec=self.spec,
            outcome=outcome,
            steps=self.steps,
            sum_reward=self._sum_reward,
            max_reward=self._max_reward,
            scores=self._scores,
            clipped_steps=self._action.count_out_of_range(self.actions),
            renders=self.renders,
            start=self.start,
            timings=self.timings,
            started_at=self._started_at,
            ended_at=clock.now(),
            worker=worker,
        )


def _best_scores(so_far: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return the maximum of each score, and the minimum of each distance."""
    best = dict(so_far)
    for name, value in now.items():
        better = min if keeps_minimum(name) else max
        best[name] = better(value, so_far.get(name, value))
    return best


@dataclass(frozen=True)
class Window:
    """The last ``n_obs_steps`` observations of an episode, in the memory that the policy reads."""

    arrays: dict[str, Array]  # each [n_obs_steps, ...]
    features: dict[str, Feature]
    n_obs_steps: int
    start_keys: tuple[str, ...] = ()
    """Observed after the reset of a simulator that shows no state, to tell its starts apart."""

    def push(self, observation: Observation, *, first: bool) -> None:
        """Append an observation; the first one of an episode fills the whole window."""
        for key, array in self.arrays.items():
            value = observation[key]
            if first:
                array[:] = value
                continue
            if self.n_obs_steps > 1:
                array[:-1] = array[1:]
            array[-1] = value


class ObservedEpisode(Episode):
    """An episode that fills an observation window, observing only what the policy reads next."""

    def __init__(
        self,
        sim: Sim,
        spec: EpisodeSpec,
        action: ActionSpec,
        window: Window,
        beat: Callable[[int], None],
    ) -> None:
        super().__init__(sim, spec, action)
        self._window = window
        self._announced: Any = sim if hasattr(sim, "announce") else None  # an AnnouncedSim
        self._announced_until = 0
        """Steps of this episode that the simulator knows already."""
        self.follows_expert = False
        """Whether every action is the expert's, as observed."""
        self._keys = tuple(window.arrays)
        self._image_keys = image_keys(window.features)
        self._beat = beat

    def begin(self) -> None:
        """Reset the simulator and observe the initial state."""
        if self._announced is not None:
            self._announced.announce_reset(self._keys)
        self.reset()
        self._observe(first=True)
        if self.start is None:
            self.start = observed_start(self._observe_keys(self._window.start_keys))

    def run(self, chunk: Array) -> None:
        """Execute a chunk until it is used up or the episode ends.

        Observes after the last ``n_obs_steps`` actions only. If the step limit falls inside the
        chunk, nothing is observed, because no request follows.
        """
        left = self.spec.task.max_steps - self.steps
        first_observed = len(chunk) - self._window.n_obs_steps if len(chunk) < left else len(chunk)
        self._announce(chunk[:left], first_observed)
        for executed, action in enumerate(chunk[:left], start=1):
            self._beat(1)  # before the step: a step that kills this process counts too
            self.step(action)
            if self.ended:
                break
            if executed > first_observed:
                self._observe(first=False)

    def _announce(self, actions: Array, first_observed: int) -> None:
        """Tell the simulator what ``run`` will do, if it wants to know."""
        if self._announced is None or self._announced_until > self.steps:
            return
        left = self.spec.task.max_steps - self.steps - len(actions)
        more = left if self.follows_expert else 0
        self._announced_until = self.steps + len(actions) + more
        located = self._sampler.due(self.steps, len(actions) + more)
        self._announced.announce(
            ComingSteps(
                actions, self._keys, max(0, first_observed), tuple(located), self._beat, more
            )
        )

    def final_images(self, features: Mapping[str, Feature]) -> dict[str, Array]:
        """Return the images of the current state, for a judge."""
        start = time.perf_counter()
        seen = self._sim.observe(tuple(features))
        self.timings.render_s += time.perf_counter() - start
        self.renders += len(features)
        return {key: np.array(seen[key]) for key in features}

    def replay(self, actions: Array) -> None:
        """Execute the recorded actions of an earlier run of this episode."""
        self.run(actions)
        if not self.ended:
            raise WorkerError(f"the episode goes on after its {len(actions)} steps")

    def _observe(self, *, first: bool) -> None:
        self._window.push(self._observe_keys(self._keys), first=first)

    def _observe_keys(self, keys: Sequence[str]) -> Observation:
        """Observe ``keys`` and count renders and time."""
        start = time.perf_counter()
        observation = self._sim.observe(keys)
        spent = time.perf_counter() - start
        images = sum(key in self._image_keys for key in keys)
        if images:
            self.renders += images
            self.timings.render_s += spent
        else:
            self.timings.sim_s += spent
        return observation


def image_keys(features: Mapping[str, Feature]) -> frozenset[str]:
    """Return the keys of rendered features."""
    return frozenset(key for key, f in features.items() if f.kind is FeatureKind.VISUAL)
