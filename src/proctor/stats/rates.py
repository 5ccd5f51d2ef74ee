"""Statistics of success rates. Pure functions of counts; ``differences`` compares two rates.

scipy is imported inside functions, so that printing a Wilson interval does not load it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import TypeAlias

from proctor.number_text import interval_text, percent_text
from proctor.stats.independent_units import UnitCounts

Interval: TypeAlias = tuple[float, float]

LEAST_ALPHA = 1e-9
"""Smallest alpha of a test; far below, 1 - alpha rounds to 1."""


LEAST_CLUSTERS = 10
"""Starts from which the correlation inside starts is estimated."""


def clustered_effective_n(clusters: Sequence[tuple[int, int]], confidence: float = 0.95) -> float:
    """Return the effective number of episodes of which several share a start.

    ``UnitCounts.effective_n`` takes the episodes of a start for copies. Here the correlation is
    estimated: the variance of the rate clustered by start (CR1), against that of independent
    episodes, and enlarged by Student's quantile for the number of starts. The result lies between
    copies and independent episodes. With few starts, or if all episodes end alike, they are copies.

    Args:
        clusters: (successes, episodes) of each independent unit.
        confidence: of the interval in which the number is used.
    """
    n, k = sum(size for _, size in clusters), sum(won for won, _ in clusters)
    squares = sum(size * size for _, size in clusters)
    if not n or squares == n:
        return float(n)
    copies, units, rate = n * n / squares, len(clusters), k / n
    if units < LEAST_CLUSTERS or k in (0, n):
        return copies
    from scipy.special import stdtrit

    spread = sum((won - size * rate) ** 2 for won, size in clusters) * units / (units - 1)
    tail = 0.5 + confidence / 2
    wider = float(stdtrit(units - 1, tail)) / NormalDist().inv_cdf(tail)
    return min(float(n), max(copies, n * n * rate * (1 - rate) / (spread * wider**2)))


def wilson_interval(
    successes: float, n: float, confidence: float = 0.95, *, effective_n: float | None = None
) -> Interval | None:
    """Return Wilson's score interval of a proportion; None if ``n`` is 0.

    Unlike p +- z*sqrt(p(1-p)/n) it keeps its coverage for small n and for rates near 0 and 1.
    ``effective_n`` is the effective sample size of the ``n`` episodes if they share starts.
    """
    if n == 0:
        return None
    n_eff = n if effective_n is None else effective_n
    return score_interval(successes, n, n_eff, NormalDist().inv_cdf(0.5 + confidence / 2))


def score_interval(successes: float, n: float, n_eff: float, z: float) -> Interval:
    """Return the score interval of a proportion of effective size ``n_eff`` at the quantile z."""
    p = successes / n
    centre = (p + z * z / (2 * n_eff)) / (1 + z * z / n_eff)
    half = z / (1 + z * z / n_eff) * math.sqrt(p * (1 - p) / n_eff + z * z / (4 * n_eff * n_eff))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def clopper_pearson_interval(successes: int, n: int, confidence: float = 0.95) -> Interval | None:
    """Return Clopper and Pearson's exact interval; None if ``n`` is 0.

    Its coverage is never below ``confidence``; it is wider than Wilson's.
    """
    if n == 0:
        return None
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, tail))
    high = 1.0 if successes == n else float(betaincinv(successes + 1, n - successes, 1 - tail))
    return low, high


@dataclass(frozen=True)
class AverageRate:
    """A rate averaged over tasks, with its standard error if tasks are the sampling unit."""

    rate: float
    stderr: float | None
    """None with one task: the variance between tasks is unknown."""


def macro_average(tasks: Sequence[tuple[int, int]]) -> AverageRate | None:
    """Return the mean of the tasks' rates, with equal weights.

    Args:
        tasks: (successes, episodes) of each task; tasks without episodes are left out.
    """
    return mean_over_tasks([successes / n for successes, n in tasks if n])


def mean_over_tasks(values: Sequence[float]) -> AverageRate | None:
    """Return the mean of one value per task, with the standard error of that mean."""
    if not values:
        return None
    stderr = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return AverageRate(fmean(values), stderr)


def micro_average(tasks: Sequence[tuple[int, int]]) -> AverageRate | None:
    """Return the rate over all episodes, with a standard error clustered by task.

    Episodes of one task are correlated, so the error is the sandwich estimate with the factor
    T / (T - 1) for T tasks (CR1).
    """
    tasks = [(successes, n) for successes, n in tasks if n]
    total = sum(n for _, n in tasks)
    if not total:
        return None
    rate = sum(successes for successes, _ in tasks) / total
    if len(tasks) == 1:
        return AverageRate(rate, None)
    spread = sum((successes - n * rate) ** 2 for successes, n in tasks)
    return AverageRate(rate, math.sqrt(len(tasks) / (len(tasks) - 1) * spread) / total)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given.

    Rejecting those at most alpha makes any false rejection with probability at most alpha.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def error_bounds(successes: int, n: int, errors: int) -> Interval | None:
    """Return the rate if all ``errors`` had failed, and if all had succeeded; None without any."""
    if not errors:
        return None
    return successes / (n + errors), (successes + errors) / (n + errors)


def rate_text(
    successes: int, n: int, units: UnitCounts | None = None, interval: Interval | None = None
) -> str:
    """Return ``71.3% [67.0, 75.3] n=450``, or ``n/a`` if ``n`` is 0.

    If episodes share starts, the text ends with ``n=450 (150 starts)``. The interval is that of
    independent episodes of one task, unless another is given.
    """
    interval = interval or wilson_interval(successes, n)
    if interval is None:
        return "n/a"
    text = f"{percent_text(successes / n)} {interval_text(interval)} n={n}"
    if units is None or units.distinct == n:
        return text
    return f"{text} ({units.distinct} start{'s' * (units.distinct != 1)})"
