"""Statistics of features: of one episode, and over several episodes.

Minimum, maximum and quantiles of one episode equal LeRobot's: quantiles come from a histogram of
5000 bins, and the same images are sampled. Means and population standard deviations are computed in
float64, in two passes. LeRobot subtracts the squared mean from the mean of squares in float32,
which loses all digits of a deviation that is small relative to the mean. Over several episodes
LeRobot takes an envelope of the episodes' quantiles. Here they are quantiles of the data
(``quantiles.py``): 1% of a dataset's values are below its ``q01``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from proctor.features import Array

FeatureStats: TypeAlias = dict[str, Array]
Stats: TypeAlias = dict[str, FeatureStats]
"""Feature key -> "min", "max", "mean", "std", "count", "q01" ... -> float64; "count" is int64 [1].

A vector's statistics have the shape of its last axis; an image's are [C, 1, 1] in [0, 1].
"""
QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
N_LEVELS = 256
"""Number of values of a uint8 pixel."""
_N_BINS = 5000
_MARGIN = 1e-10
"""Margin of LeRobot's histograms on either side of the data."""
_FEWEST_PICTURES, _MOST_PICTURES = 100, 10_000
_LARGE_SIDE, _SAMPLED_SIDE = 300, 150


def array_stats(values: Array) -> FeatureStats:
    """Return the statistics of one episode's ``values`` [frames, ...].

    Axes between the first and the last are pooled. Integers and booleans are converted to floats.
    """
    rows = _pooled(values)
    stats = moments(values)
    if len(rows) == 1:
        return stats | {name: stats["mean"].copy() for name in QUANTILES}
    rows = rows.astype(np.promote_types(values.dtype, np.float32))
    quantiles = [_quantiles(column, None) for column in rows.T]
    for i, name in enumerate(QUANTILES):
        stats[name] = np.array([found[i] for found in quantiles], np.float64)
    return stats


def moments(values: Array) -> FeatureStats:
    """Return minimum, maximum, mean, standard deviation and count of one episode's ``values``.

    Sums are float64, and the deviation is computed from differences to the mean. Values that are
    not finite make the mean and deviation of their component not finite.
    """
    rows = _pooled(values)
    exact = rows.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = exact.mean(axis=0)
        deviation = np.sqrt(np.square(exact - mean).mean(axis=0))
    return {
        "min": rows.min(axis=0).astype(np.float64),
        "max": rows.max(axis=0).astype(np.float64),
        "mean": mean,
        "std": deviation,
        "count": np.array([len(values)], np.int64),
    }


def _pooled(values: Array) -> Array:
    """Return ``values`` [frames, ...] as [n, components]; components are the last axis."""
    return values.reshape(-1, 1 if values.ndim < 2 else values.shape[-1])


def pixel_stats(counts: Array, n_pictures: int) -> FeatureStats:
    """Return the statistics of images from their pixel counts [C, 256].

    Values are float32 and divided by 255 at the end, like LeRobot's; the sums are exact.
    """
    stats = level_stats(counts, np.arange(N_LEVELS), n_pictures)
    return {
        name: value
        if name == "count"
        else (value.astype(np.float32) / np.float32(255)).astype(np.float64)
        for name, value in stats.items()
    }


def level_stats(counts: Array, levels: Array, n_pictures: int) -> FeatureStats:
    """Return the statistics of images from the counts [C, n] of arbitrary values ``levels`` [n].

    ``levels`` are ascending. They are not scaled.
    """
    share = counts / counts.sum(axis=1, keepdims=True)
    mean = share @ levels.astype(np.float64)
    away = levels.astype(np.float64) - mean[:, None]
    variance = (share * away**2).sum(axis=1)
    seen = [np.flatnonzero(channel) for channel in counts]
    stats = _record(
        np.array([levels[channel[0]] for channel in seen], np.float32),
        np.array([levels[channel[-1]] for channel in seen], np.float32),
        mean.astype(np.float32),
        np.sqrt(variance).astype(np.float32),
        n_pictures,
    )
    for i, channel in enumerate(counts):
        values = levels[seen[i]].astype(np.float32)
        found = _quantiles(values, channel[seen[i]])
        for name, value in zip(QUANTILES, found, strict=True):
            stats[name][i] = value
    return {
        name: value if name == "count" else value[:, None, None] for name, value in stats.items()
    }


def _record(low: Array, high: Array, mean: Array, std: Array, count: int) -> FeatureStats:
    """Return the statistics, with the mean as placeholder of the quantiles, as in LeRobot."""
    named = {"min": low, "max": high, "mean": mean, "std": std}
    stats = {name: np.asarray(value, np.float64) for name, value in named.items()}
    stats["count"] = np.array([count], np.int64)
    return stats | {name: np.array(mean, np.float64) for name in QUANTILES}


def _quantiles(values: Array, weights: Array | None) -> list[float]:
    """Return the quantiles of one dimension from a histogram, in the precision of ``values``."""
    margin = values.dtype.type(_MARGIN)
    edges = np.linspace(values.min() - margin, values.max() + margin, _N_BINS + 1)
    histogram, _ = np.histogram(values, bins=edges, weights=weights)
    cumulative = np.cumsum(histogram)
    targets = [share * float(cumulative[-1]) for share in QUANTILES.values()]
    found = []
    for target, i in zip(targets, np.searchsorted(cumulative, targets), strict=True):
        value = edges[i]
        if i > 0:
            inside = (target - cumulative[i - 1]) / histogram[i]
            value = edges[i] + inside * (edges[i + 1] - edges[i])
        found.append(float(value))
    return found


def sampled_frames(n_frames: int) -> Array:
    """Return the frames whose images are sampled for an episode's statistics, ascending."""
    n = min(max(int(n_frames**0.75), min(_FEWEST_PICTURES, n_frames)), _MOST_PICTURES)
    return np.round(np.linspace(0, n_frames - 1, n)).astype(np.int64)


def with_image_count(stats: FeatureStats, n_frames: int) -> FeatureStats:
    """Return a camera's statistics in an episode of ``n_frames``, with a count of images.

    With ``streaming_encoding`` LeRobot counts pixels instead, which would outweigh other episodes.
    """
    if stats["count"].max(initial=0) <= n_frames:
        return stats
    return stats | {"count": np.array([len(sampled_frames(n_frames))], np.int64)}


def sampled_pixels(picture: Array) -> Array:
    """Return every k-th pixel of a large image [H, W, C], or all of a small one."""
    side = max(picture.shape[:2])
    step = int(side / _SAMPLED_SIDE) if side >= _LARGE_SIDE else 1
    return picture[::step, ::step]


class PixelCounts:
    """Counts the pixel values of one camera's images, before the number of images is known."""

    def __init__(self, n_levels: int = N_LEVELS) -> None:
        self._n_levels = n_levels
        self._pictures: list[
            Array
        ] = []  # [C, 256] each, 3 kB; the sampled ones are known at the end

    def add(self, picture: Array) -> None:
        """Count the pixels of one image [H, W, C]."""
        channels = np.moveaxis(sampled_pixels(picture), -1, 0)
        counts = [np.bincount(channel.ravel(), minlength=self._n_levels) for channel in channels]
        self._pictures.append(np.stack(counts).astype(np.uint32))

    def sampled(self) -> Array:
        """Return the pixel counts [C, levels] of the images that LeRobot samples."""
        chosen = sampled_frames(len(self._pictures))
        pictures = np.stack([self._pictures[i] for i in chosen])
        total: Array = pictures.sum(axis=0, dtype=np.int64)
        return total

    @property
    def n_sampled(self) -> int:
        """Number of sampled images."""
        return len(sampled_frames(len(self._pictures)))

    def stats(self) -> FeatureStats:
        """Return the statistics of the colour images so far."""
        return pixel_stats(self.sampled(), self.n_sampled)


def aggregate(parts: Sequence[Stats]) -> Stats:
    """Aggregate the statistics of several episodes or datasets, as LeRobot does.

    Quantiles are an envelope of the parts'; ``RunningStatistics`` computes those of the data. A
    feature that only some parts have is aggregated over these.
    """
    keys = list(dict.fromkeys(key for part in parts for key in part))
    return {key: _aggregate([part[key] for part in parts if key in part]) for key in keys}


def _aggregate(parts: Sequence[FeatureStats]) -> FeatureStats:
    names = [
        name for name in parts[0] if all(name in part for part in parts)
    ]  # older ones lack quantiles
    return aggregate_rows({name: np.stack([part[name] for part in parts]) for name in names})


def aggregate_rows(rows: Mapping[str, Array]) -> FeatureStats:
    """Aggregate the statistics of one feature, given as ``rows`` [parts, ...].

    Variances are merged in float64 by the parallel formula: the parts' variances plus the squared
    differences of their means.
    """
    if len(rows["count"]) == 1:
        return {name: of_parts[0] for name, of_parts in rows.items()}
    means, deviations = (rows[name].astype(np.float64) for name in ("mean", "std"))
    counts = rows["count"]
    n = counts.reshape(-1, *[1] * (means.ndim - 1)).astype(np.float64)
    total = n.sum()
    with np.errstate(invalid="ignore", over="ignore"):  # data that are not finite
        mean = (n * means).sum(axis=0) / total
        variance = (n * (deviations**2 + (means - mean) ** 2)).sum(axis=0) / total
    merged = {
        "min": rows["min"].min(axis=0),
        "max": rows["max"].max(axis=0),
        "mean": mean,
        "std": np.sqrt(variance),
        "count": counts.sum(axis=0),
    }
    quantiles = {name: share for name, share in QUANTILES.items() if name in rows}
    return merged | {name: _envelope(rows[name], share) for name, share in quantiles.items()}


def _envelope(quantiles: Array, share: float) -> Array:
    found: Array = quantiles.min(axis=0) if share <= 0.5 else quantiles.max(axis=0)
    return found


def features_with_stats(features: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the keys of info.json's ``features`` that have statistics: all except text."""
    return [key for key, entry in features.items() if entry["dtype"] not in ("string", "language")]
