"""Statistics of numeric features, measured from the data for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from proctor.datasets.checks.table import Whole

Numbers = npt.NDArray[np.float64]


@dataclass
class MeasuredStatistics:
    """Per episode (rows) and component: range, mean, and sum of squared deviations."""

    low: Numbers
    high: Numbers
    mean: Numbers
    square: Numbers
    count: Numbers
    """Values per episode: frames times the axes before the last."""
    frames: Whole

    @classmethod
    def empty(cls, episodes: int) -> MeasuredStatistics:
        """Return the statistics of a feature without frames."""
        nothing = np.full((episodes, 0), np.nan)
        return cls(nothing, nothing, nothing, nothing, np.zeros(episodes), np.zeros(episodes, int))

    def add(self, values: npt.NDArray[Any], starts: Whole, rows: Whole) -> list[int]:
        """Add runs of frames; run i begins at ``starts[i]`` and belongs to row ``rows[i]``, or -1.

        Return the episodes with values that are not finite, which are not measured.
        """
        frames = len(values)
        pooled = values.reshape(frames, -1, values.shape[-1] if values.ndim > 1 else 1)
        pooled = pooled.astype(np.float64)  # [frames, all axes but the last, components]
        lengths = np.diff(np.append(starts, frames))
        if self.low.shape[1] == 0:
            self._widen(pooled.shape[2])
        finite = np.logical_and.reduceat(np.isfinite(pooled).all(axis=(1, 2)), starts)
        with np.errstate(invalid="ignore", over="ignore"):
            counts = lengths * pooled.shape[1]
            mean = np.add.reduceat(pooled.sum(axis=1), starts) / counts[:, None]
            away = pooled - np.repeat(mean, lengths, axis=0)[:, None, :]
            square = np.add.reduceat((away**2).sum(axis=1), starts)
        taken = (rows >= 0) & finite
        into = rows[taken]
        self.low[into] = np.minimum.reduceat(pooled.min(axis=1), starts)[taken]
        self.high[into] = np.maximum.reduceat(pooled.max(axis=1), starts)[taken]
        self.mean[into], self.square[into] = mean[taken], square[taken]
        self.count[into], self.frames[into] = counts[taken], lengths[taken]
        return [int(row) for row in rows[(rows >= 0) & ~finite]]

    def _widen(self, size: int) -> None:
        shape = (len(self.frames), size)
        self.low, self.high = np.full(shape, np.nan), np.full(shape, np.nan)
        self.mean, self.square = np.full(shape, np.nan), np.full(shape, np.nan)

    @property
    def is_whole(self) -> bool:
        """Whether every episode was measured."""
        return bool(len(self.frames)) and bool((self.frames > 0).all())

    def overall(self) -> dict[str, Numbers]:
        """Return range, mean, standard deviation and count of all episodes together."""
        weight = (self.count / self.count.sum())[:, None]
        mean = (weight * self.mean).sum(axis=0)
        apart = self.square + self.count[:, None] * (self.mean - mean) ** 2
        return {
            "min": self.low.min(axis=0),
            "max": self.high.max(axis=0),
            "mean": mean,
            "std": np.sqrt(apart.sum(axis=0) / self.count.sum()),
            "count": np.array([self.frames.sum()], float),
        }

    def of_episode(self, row: int) -> dict[str, Numbers]:
        """Return the same of one episode."""
        return {
            "min": self.low[row],
            "max": self.high[row],
            "mean": self.mean[row],
            "std": np.sqrt(self.square[row] / self.count[row]),
            "count": self.frames[row : row + 1].astype(float),
        }
