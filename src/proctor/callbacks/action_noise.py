"""Noise on executed actions, so that demonstrations show how to recover from errors.

The dataset records the policy's action; the simulator executes it with noise. In an experiment,
small policies solved tasks when half of their demonstrations had noise of scale 0.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from proctor.features import ActionSpec, Array
from proctor.types import EpisodeSpec

_BURST_STEPS, _PERIOD = 10, 3
"""Noise of ten steps in one direction, then twenty steps in which the policy recovers."""


@dataclass(frozen=True)
class ActionNoise:
    """Settings of the action noise; picklable. The noise never depends on earlier episodes."""

    scale: float = 0.0
    """Standard deviation, as a fraction of half the action's range."""
    share: float = 1.0
    """Fraction of a task's episodes that get noise."""
    dims: tuple[int, ...] | None = None
    """Action dimensions that get noise; None: all."""

    def applies_to(self, index: int) -> bool:
        """Return whether episode ``index`` of a task gets noise.

        Episodes with noise are spread evenly: any first n of a task hold the same fraction.
        """
        before, after = int(index * self.share), int((index + 1) * self.share)
        return self.scale > 0 and after > before

    def of(self, spec: EpisodeSpec, action: ActionSpec) -> EpisodeNoise | None:
        """Return the noise of episode ``spec``, or None if the episode gets none."""
        return EpisodeNoise(self, spec, action) if self.applies_to(spec.index) else None


class EpisodeNoise:
    """The noise of one episode, seeded by its seed, task and index."""

    def __init__(self, noise: ActionNoise, spec: EpisodeSpec, action: ActionSpec) -> None:
        key = [spec.seed, crc32(spec.task.name.encode()), spec.index]
        self._rng: Any = np.random.default_rng(key)
        low, high = action.bounds
        self._scale = noise.scale * (high.astype(np.float64) - low) / 2
        if noise.dims is not None:
            others = [number for number in range(action.size) if number not in noise.dims]
            self._scale[others] = 0
        self._noise = np.zeros(action.size)

    def noise_at(self, step: int) -> Array:
        """Return the noise that is added to the action of ``step``; call it for steps in order."""
        burst, step_in_burst = divmod(step, _BURST_STEPS)
        if burst % _PERIOD != 1:
            return np.zeros_like(self._noise)
        if step_in_burst == 0:
            self._noise = self._rng.normal(0.0, 1.0, len(self._noise)) * self._scale
        return self._noise
