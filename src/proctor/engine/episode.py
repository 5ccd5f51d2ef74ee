"""One episode on one simulator: runs chunks, observes what is consumed next, adds everything up."""

from __future__ import annotations

import hashlib
import math
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from proctor.benchmarks.base import Sim
from proctor.errors import SimulatorFault, WorkerError
from proctor.features import ActionSpec, Array, Feature, FeatureKind, Observation
from proctor.system import clock
from proctor.system.global_rng import seed_global_rng
from proctor.types import EpisodeResult, EpisodeSpec, Outcome, StepResult, Timings

DIGEST = 2
"""The definition of the digest. 1 did not see the world that an episode started in, and of the one
it ended in the joints only; folders from then do not say it."""


class Episode:
    """The running tally of one episode. Knows nothing of processes, policies or rendering."""

    def __init__(self, sim: Sim, spec: EpisodeSpec, action: ActionSpec) -> None:
        self.spec = spec
        self.steps = 0
        self.given = 0
        """Actions given to the simulator: one more than ``steps`` when it broke in a step."""
        self.ended = False
        self.renders = 0
        self.timings = Timings()
        self._sim = sim
        self._action = action
        self._success: bool | None = False
        self._solved_after: int | None = None
        self._sum_reward = 0.0
        self._max_reward: float | None = None
        self._actions = np.empty((spec.task.max_steps, action.size), np.float32)
        self._hash = hashlib.blake2b(digest_size=16)
        self._started_at = clock.now()

    def reset(self) -> None:
        """Put the simulator into the spec's starting world.

        Raises:
            SimulatorFault: that world is not finite.
        """
        start = time.perf_counter()
        seed_global_rng(self.spec.seed)  # some simulators draw from them, whatever the spec says
        self._sim.reset(self.spec)
        self._hash_world()
        self.timings.sim_s += time.perf_counter() - start

    def step(self, action: Array) -> StepResult:
        """Take one step and count it; the horizon or the simulator may end the episode.

        Raises:
            SimulatorFault: the reward is not finite.
        """
        self._actions[self.given] = action
        self.given += 1
        start = time.perf_counter()
        step = self._sim.step(action)
        self.timings.sim_s += time.perf_counter() - start
        if not math.isfinite(step.reward):
            said = f"the simulator gave reward {step.reward} at step {self.steps + 1}"
            raise SimulatorFault(said)
        self.steps += 1
        self._success = step.success
        if step.success and self._solved_after is None:
            self._solved_after = self.steps
        self._sum_reward += step.reward
        if self._max_reward is None or step.reward > self._max_reward:
            self._max_reward = step.reward
        self._hash.update(struct.pack("<d?", step.reward, bool(step.success)))
        self.ended = step.terminated or self.steps >= self.spec.task.max_steps
        return step

    @property
    def actions(self) -> Array:
        """All that were given to the simulator, [given, action size]."""
        return self._actions[: self.given]

    def result(self, worker: int) -> EpisodeResult:
        """Return the finished episode.

        Raises:
            SimulatorFault: the world it ended in is not finite.
        """
        self._hash_world()
        result = self._tally(worker, self._outcome)
        result.digest, result.success_at_end = self._hash.hexdigest(), self._success
        result.steps_to_success, result.actions = self._solved_after, self.actions
        return result

    @property
    def _outcome(self) -> Outcome:
        if self._success is None:
            return Outcome.ENDED
        return Outcome.SUCCESS if self._success_once else Outcome.FAILURE

    @property
    def _success_once(self) -> bool:
        return self._solved_after is not None

    def diverged(self, worker: int) -> EpisodeResult:
        """Return the episode up to where the simulator broke; the action that did it is a step."""
        result = self._tally(worker, Outcome.DIVERGED)
        result.steps = self.given
        return result

    def _hash_world(self) -> None:
        """Let the digest see the world as it is now."""
        world = self._sim.physics()
        if not np.isfinite(world).all():
            raise SimulatorFault(f"the simulator's world is not finite after step {self.steps}")
        self._hash.update(world.tobytes())

    def _tally(self, worker: int, outcome: Outcome) -> EpisodeResult:
        return EpisodeResult(
            spec=self.spec,
            outcome=outcome,
            steps=self.steps,
            sum_reward=self._sum_reward,
            max_reward=self._max_reward,
            clipped_steps=self._action.count_out_of_range(self.actions),
            renders=self.renders,
            timings=self.timings,
            started_at=self._started_at,
            ended_at=clock.now(),
            worker=worker,
        )


def check_observation(observation: Observation, features: Mapping[str, Feature]) -> None:
    """Check that a simulator observed what its benchmark says.

    numpy would stretch a row to fit, and the policy would be blamed for what it makes of NaN.

    Raises:
        SimulatorFault: naming what is wrong.
    """
    for key, feature in features.items():
        if key not in observation:
            raise SimulatorFault(f"the simulator was asked for {key} and gave none")
        seen = observation[key]
        if np.shape(seen) != feature.shape:
            raise SimulatorFault(
                f"the simulator gave {key} of shape {np.shape(seen)}, not {feature.shape}"
            )
        if feature.kind is not FeatureKind.VISUAL and not np.isfinite(seen).all():
            raise SimulatorFault(f"the simulator gave a {key} that is not finite")


@dataclass(frozen=True)
class Window:
    """The last ``n_obs_steps`` observations of an episode, kept where the policy reads them."""

    arrays: dict[str, Array]  # each [n_obs_steps, ...]
    features: dict[str, Feature]
    n_obs_steps: int

    def push(self, observation: Observation, *, first: bool) -> None:
        """Append an observation; the first of an episode fills the whole window.

        Raises:
            SimulatorFault: it is not what the benchmark says it is.
        """
        check_observation(observation, self.features)
        for key, array in self.arrays.items():
            seen = observation[key]
            if first:
                array[:] = seen
                continue
            if self.n_obs_steps > 1:
                array[:-1] = array[1:]
            array[-1] = seen


class ObservedEpisode(Episode):
    """An episode that fills a window, observing only what the policy will look at next."""

    def __init__(
        self,
        sim: Sim,
        spec: EpisodeSpec,
        action: ActionSpec,
        window: Window,
        beat: Callable[[], None],
    ) -> None:
        super().__init__(sim, spec, action)
        self._window = window
        self._keys = tuple(window.arrays)
        self._pictures = image_keys(window.features)
        self._beat = beat

    def begin(self) -> None:
        """Reset, and observe the starting world."""
        self.reset()
        self._observe(first=True)

    def run(self, chunk: Array) -> None:
        """Execute a chunk until it is used up or the episode ends.

        Observes after its last ``n_obs_steps`` actions only, and not at all when the horizon falls
        inside the chunk: nobody would look.
        """
        left = self.spec.task.max_steps - self.steps
        first_seen = len(chunk) - self._window.n_obs_steps if len(chunk) < left else len(chunk)
        for taken, action in enumerate(chunk[:left], start=1):
            self._beat()  # before the step: one that kills this process is counted too
            self.step(action)
            if self.ended:
                break
            if taken > first_seen:
                self._observe(first=False)

    def play_again(self, actions: Array) -> None:
        """Take the actions of an earlier course of this episode, whatever there is to see.

        Raises:
            WorkerError: it goes on where it ended then.
        """
        self.run(actions)
        if not self.ended:
            raise WorkerError(f"the episode goes on after its {len(actions)} steps")

    def _observe(self, *, first: bool) -> None:
        self._window.push(self._look(self._keys), first=first)

    def _look(self, keys: Sequence[str]) -> Observation:
        """Observe ``keys``, and count what it cost."""
        start = time.perf_counter()
        seen = self._sim.observe(keys)
        spent = time.perf_counter() - start
        images = sum(key in self._pictures for key in keys)
        if images:
            self.renders += images
            self.timings.render_s += spent
        else:
            self.timings.sim_s += spent
        return seen


def image_keys(features: Mapping[str, Feature]) -> frozenset[str]:
    """Return the keys that are rendered."""
    return frozenset(key for key, f in features.items() if f.kind is FeatureKind.VISUAL)
