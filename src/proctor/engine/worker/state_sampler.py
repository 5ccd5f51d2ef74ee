"""Samples where things are during an episode, for the report page.

It only reads the simulator, a few dozen times per episode, and never changes an episode or its
digest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from proctor.benchmarks.base import Sim
from proctor.features import Array
from proctor.types import StateTrace

_SAMPLES = 24
"""Samples of an episode of full length, besides the last."""
_MAX_COORDINATES = 24


class StateSampler:
    """Collects the trace of one episode."""

    def __init__(self, sim: Sim, max_steps: int) -> None:
        self._located: Any = sim if hasattr(sim, "coordinates") else None  # a LocatedSim
        self._interval = max(1, -(-max_steps // _SAMPLES))
        self._names: tuple[str, ...] = ()
        self._steps: list[int] = []
        self._states: list[list[float]] = []
        self._best: list[float] = []

    def begin(self, world: Array) -> None:
        """Sample the initial state; ``world`` is the simulator's physics state."""
        found = {} if self._located is None else self._located.coordinates()
        self._names = tuple(found)[:_MAX_COORDINATES]
        if not found:
            self._located = None
            if world.size <= _MAX_COORDINATES:
                self._names = tuple(f"state {number}" for number in range(world.size))
        self._add(0, self._read(world), None)

    def due(self, step: int, n_steps: int) -> list[int]:
        """Return which of the ``n_steps`` after ``step`` end with a sample, counted from 0."""
        if self._located is None:
            return []
        return [n for n in range(n_steps) if (step + n + 1) % self._interval == 0]

    def after_step(self, step: int, best_reward: float | None) -> None:
        """Sample the state after ``step`` steps, if a sample is due."""
        if step % self._interval == 0:
            self._add(step, self._read(None), best_reward)

    def end(self, step: int, world: Array, best_reward: float | None) -> StateTrace | None:
        """Sample the final state and return the trace; None: nothing is known but rewards."""
        if not self._names:
            return None
        if self._steps[-1] == step and step:
            self._drop_last()
        self._add(step, self._read(world), best_reward)
        return StateTrace(
            names=self._names,
            steps=np.array(self._steps, np.int32),
            states=np.array(self._states, np.float32),
            best_reward=np.array(self._best, np.float32),
        )

    def _read(self, world: Array | None) -> list[float]:
        """Return the coordinates; NaN where they would have to be read from ``physics``."""
        if self._located is not None:
            found = self._located.coordinates()
            return [found.get(name, np.nan) for name in self._names]
        if world is None or world.size != len(self._names):
            return [np.nan] * len(self._names)
        return [float(value) for value in world.ravel()]

    def _add(self, step: int, state: list[float], best_reward: float | None) -> None:
        self._steps.append(step)
        self._states.append(state)
        self._best.append(np.nan if best_reward is None else best_reward)

    def _drop_last(self) -> None:
        for values in (self._steps, self._states, self._best):
            values.pop()
