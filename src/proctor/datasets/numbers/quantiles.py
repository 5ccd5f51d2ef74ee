"""Streaming quantiles over any number of episodes, in bounded memory.

Values are counted in 8192 to 16384 bins over the range so far; the bin width is a power of two.
When the range grows, neighbouring bins are merged. The bins are nested, so no count is ever split,
and the result does not depend on the order of the episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from proctor.datasets.numbers.statistics import (
    N_LEVELS,
    QUANTILES,
    FeatureStats,
    Stats,
    aggregate_rows,
    pixel_stats,
)
from proctor.features import Array

_MOST_BINS = 2**14
_EXACT_BITS = 52
"""Largest bin number: an integer that float64 represents exactly."""
_SMALLEST = -1000
_KNOTS = np.array([0.0, *QUANTILES.values(), 1.0])


class StreamingQuantiles:
    """A histogram of one dimension, from which quantiles are computed."""

    def __init__(self) -> None:
        self.n = 0
        self._low, self._high = math.inf, -math.inf
        self._exponent = _SMALLEST
        self._first = 0
        self._counts = np.zeros(0, np.int64)

    def add(self, values: Array) -> None:
        """Count ``values`` of any shape; values that are not finite are ignored."""
        if values.dtype.kind == "f":
            values = values[np.isfinite(values)]
        if values.size == 0:
            return
        self._low = min(self._low, float(values.min()))
        self._high = max(self._high, float(values.max()))
        exponent = _exponent(self._low, self._high)
        bins = _bins(values, exponent).ravel()
        first, last = (int(_bins(np.float64(end), exponent)) for end in (self._low, self._high))
        counts = np.bincount(bins - first, minlength=last - first + 1)
        if self.n:
            shift = min(exponent - self._exponent, 62)
            old = (self._first + np.arange(len(self._counts))) >> shift
            np.add.at(counts, old - first, self._counts)
        self._exponent, self._first, self._counts = exponent, first, counts
        self.n += values.size

    def quantiles(self) -> list[float]:
        """Return the quantiles of all values, exact to a bin's width; NaN without values."""
        if not self.n:
            return [math.nan] * len(QUANTILES)
        cumulative = np.cumsum(self._counts)
        targets = [share * self.n for share in QUANTILES.values()]
        found = []
        for target, i in zip(targets, np.searchsorted(cumulative, targets), strict=True):
            before = cumulative[i - 1] if i else 0
            place = self._first + int(i) + (target - before) / self._counts[i]
            found.append(min(max(math.ldexp(place, self._exponent), self._low), self._high))
        return found


def _exponent(low: float, high: float) -> int:
    """Return the smallest exponent of the bin width at which the range fits into the bins."""
    finest = max(math.frexp(max(abs(low), abs(high)))[1] - _EXACT_BITS, _SMALLEST)
    if low == high:
        return finest
    exponent = max(math.frexp((high - low) / _MOST_BINS)[1] - 1, finest)
    while _bins(np.float64(high), exponent) - _bins(np.float64(low), exponent) >= _MOST_BINS:
        exponent += 1
    return exponent


def _bins(values: Array | np.float64, exponent: int) -> Array:
    found: Array = np.floor(np.ldexp(np.asarray(values, np.float64), -exponent)).astype(np.int64)
    return found


class _Rows:
    """A growing array of rows of one shape."""

    def __init__(self, like: Array) -> None:
        self._rows = np.zeros((8, *like.shape), like.dtype)
        self.n = 0

    def add(self, row: Array) -> None:
        if self.n == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[self.n] = row
        self.n += 1

    def all(self) -> Array:
        return self._rows[: self.n]


class RunningStatistics:
    """Statistics of a growing dataset, independent of how many episodes are added at once."""

    def __init__(self) -> None:
        self._stats: dict[str, dict[str, _Rows]] = {}
        self._n_episodes = 0
        self._spreads: dict[str, list[StreamingQuantiles]] = {}
        self._levels: dict[str, Array] = {}
        self._unknown: set[str] = set()

    def add(
        self, stats: Stats, numbers: Mapping[str, Array], pixels: Mapping[str, Array | None]
    ) -> None:
        """Add one episode.

        Args:
            stats: its statistics.
            numbers: its numeric features, [frames, ...] each.
            pixels: pixel counts [C, 256] of each camera's sampled images. None if they are
                unknown: then they are estimated from the episode's quantiles.
        """
        self.add_all([stats], numbers, [pixels])

    def add_all(
        self,
        stats: Sequence[Stats],
        numbers: Mapping[str, Array],
        pixels: Sequence[Mapping[str, Array | None]],
    ) -> None:
        """Add several episodes, whose ``numbers`` are concatenated; same result as ``add``."""
        for of_episode in stats:
            for key, entry in of_episode.items():
                kept = self._stats.setdefault(key, {})
                for name, value in entry.items():
                    kept.setdefault(name, _Rows(value)).add(value)
        self._n_episodes += len(stats)
        for key, values in numbers.items():
            rows = values.reshape(-1, 1 if values.ndim < 2 else values.shape[-1])
            spreads = self._spreads.setdefault(
                key, [StreamingQuantiles() for _ in range(rows.shape[1])]
            )
            for spread, column in zip(spreads, rows.T, strict=True):
                spread.add(column)
        for of_episode, counts in zip(stats, pixels, strict=True):
            self._add_pixels(of_episode, counts)

    def _add_pixels(self, stats: Stats, pixels: Mapping[str, Array | None]) -> None:
        for key, counts in pixels.items():
            kept = counts if counts is not None else _guessed_levels(stats[key])
            if kept is None:  # a dataset without quantiles
                self._unknown.add(key)
                continue
            weight = float(stats[key]["count"][0])  # long episodes have fewer samples per frame
            share = kept / kept.sum(axis=1, keepdims=True) * weight
            self._levels[key] = self._levels[key] + share if key in self._levels else share

    def stats(self) -> Stats:
        """Return the statistics of all episodes; for a single episode they equal LeRobot's."""
        merged: Stats = {}
        for key, kept in self._stats.items():
            n = kept["count"].n
            rows = {name: of_name.all() for name, of_name in kept.items() if of_name.n == n}
            merged[key] = aggregate_rows(rows)  # all at once, so that rounding is the same
        if self._n_episodes < 2:
            return merged
        for key, spreads in self._spreads.items():
            found = np.array([spread.quantiles() for spread in spreads])  # [dimensions, quantiles]
            merged[key] |= {name: found[:, i] for i, name in enumerate(QUANTILES)}
        for key in self._levels.keys() - self._unknown:
            of_pixels = pixel_stats(self._levels[key], 1)
            merged[key] |= {name: of_pixels[name] for name in QUANTILES}
        return merged


def _guessed_levels(stats: FeatureStats) -> Array | None:
    """Return pixel counts [C, 256] with the quantiles of ``stats``, uniform between them."""
    names = ("min", *QUANTILES, "max")
    if not all(name in stats and stats[name].size == len(stats["mean"]) > 0 for name in names):
        return None
    edges = (np.arange(N_LEVELS + 1) - 0.5) / 255
    guessed = []
    for channel in range(len(stats["mean"])):
        ends = [float(stats[name].ravel()[channel]) for name in names]
        knots = np.maximum.accumulate(ends)
        below = np.interp(edges, knots, _KNOTS)
        below[0], below[-1] = 0, 1  # rounding errors at the ends
        guessed.append(np.diff(below))
    return np.array(guessed)
