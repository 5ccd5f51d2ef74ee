"""Disturbed actions: what is played is not what the policy wanted, so it shows how to recover.

In a trial, demonstrations half of which were disturbed with 0.3 made small policies solve tasks: a
policy sees what to do where its own errors will lead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from proctor.features import ActionSpec, Array
from proctor.types import EpisodeSpec

_BURST_STEPS, _PERIOD = 10, 3
"""A push of ten steps in one direction, then twenty steps to come back in."""


@dataclass(frozen=True)
class ActionNoise:
    """How actions are disturbed; picklable. None of it depends on what ran before."""

    scale: float = 0.0
    """Standard deviation, in halves of the action's range."""
    share: float = 1.0
    """Of the episodes of a task."""
    dims: tuple[int, ...] | None = None
    """Which numbers of an action; None: all."""

    def applies_to(self, index: int) -> bool:
        """Whether episode ``index`` of a task is disturbed: evenly spread, in any first n too."""
        before, after = int(index * self.share), int((index + 1) * self.share)
        return self.scale > 0 and after > before

    def of(self, spec: EpisodeSpec, action: ActionSpec) -> EpisodeNoise | None:
        """Return what disturbs ``spec``, if anything does."""
        return EpisodeNoise(self, spec, action) if self.applies_to(spec.index) else None


class EpisodeNoise:
    """The disturbance of one episode, keyed by its seed, task and index."""

    def __init__(self, noise: ActionNoise, spec: EpisodeSpec, action: ActionSpec) -> None:
        key = [spec.seed, crc32(spec.task.name.encode()), spec.index]
        self._rng: Any = np.random.default_rng(key)
        low, high = action.bounds
        self._scale = noise.scale * (high.astype(np.float64) - low) / 2
        if noise.dims is not None:
            others = [number for number in range(action.size) if number not in noise.dims]
            self._scale[others] = 0
        self._push = np.zeros(action.size)

    def noise_at(self, step: int) -> Array:
        """Return what is added to the action of ``step``; steps are asked for in order."""
        burst, into = divmod(step, _BURST_STEPS)
        if burst % _PERIOD != 1:
            return np.zeros_like(self._push)
        if into == 0:
            self._push = self._rng.normal(0.0, 1.0, len(self._push)) * self._scale
        return self._push
