"""Statistics of success rates: pure functions of counts. Differences of rates: ``differences``.

scipy is imported where it is used: everything that only prints a Wilson interval starts without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import TypeAlias

from proctor.types import WorldKey

Interval: TypeAlias = tuple[float, float]

LEAST_ALPHA = 1e-9
"""Of a test: far below, 1 - alpha cannot be told from 1."""


class WorldCounts:
    """Counts the different worlds that episodes started from, and what those episodes are worth.

    Episodes of one world resemble each other; at worst they are copies. If they are, the rate
    varies as that of ``effective_n`` independent episodes (Kish 1965): the number of worlds where
    all were played equally often, a little less where some were played more often than others.
    """

    def __init__(self, worlds: Iterable[WorldKey] = ()) -> None:
        self._played: dict[WorldKey, int] = {}
        self._episodes = self._squares = 0
        for world in worlds:
            self.add(world)

    def add(self, world: WorldKey) -> None:
        """Count one episode."""
        before = self._played.get(world, 0)
        self._played[world] = before + 1
        self._episodes += 1
        self._squares += 2 * before + 1

    @property
    def distinct(self) -> int:
        """How many different worlds there were."""
        return len(self._played)

    @property
    def effective_n(self) -> float:
        """The number of independent episodes that these are worth at least."""
        return self._episodes**2 / self._squares if self._episodes else 0.0


def wilson_interval(
    successes: int, n: int, confidence: float = 0.95, *, effective_n: float | None = None
) -> Interval | None:
    """Return Wilson's score interval of a proportion; None when there is nothing to judge.

    Unlike p +- z*sqrt(p(1-p)/n) it keeps its coverage for small n and for rates near 0 and 1.
    ``effective_n`` is what the ``n`` episodes are worth, where they repeat worlds.
    """
    if n == 0:
        return None
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = successes / n
    worth = n if effective_n is None else effective_n
    centre = (p + z * z / (2 * worth)) / (1 + z * z / worth)
    half = z / (1 + z * z / worth) * math.sqrt(p * (1 - p) / worth + z * z / (4 * worth * worth))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def clopper_pearson_interval(successes: int, n: int, confidence: float = 0.95) -> Interval | None:
    """Return Clopper and Pearson's exact interval: it never covers less often than it says.

    Wider than Wilson's; for when a guarantee matters more than a short interval.
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
    """A rate averaged over tasks, and its standard error when tasks are what was sampled."""

    rate: float
    stderr: float | None
    """None with one task: the spread between tasks cannot be known."""


def macro_average(tasks: Sequence[tuple[int, int]]) -> AverageRate | None:
    """Return the mean of the tasks' rates, every task counting the same.

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

    Episodes of one task resemble each other, so they tell less than as many independent ones:
    the error is the sandwich estimate with the factor T / (T - 1) for T tasks (CR1).
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

    Flagging those at most alpha raises a false flag anywhere with probability at most alpha.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def rate_text(
    successes: int, n: int, worlds: WorldCounts | None = None, interval: Interval | None = None
) -> str:
    """Return ``71.3% [67.0, 75.3] n=450``, or ``n/a`` when nothing was measured.

    Where episodes repeat worlds, the interval allows for it: ``n=450 (150 worlds)``. It is Wilson's
    unless another is given.
    """
    worth = None if worlds is None else worlds.effective_n
    interval = interval or wilson_interval(successes, n, effective_n=worth)
    if interval is None:
        return "n/a"
    low, high = interval
    text = f"{100 * successes / n:.1f}% [{100 * low:.1f}, {100 * high:.1f}] n={n}"
    if worlds is None or worlds.distinct == n:
        return text
    return f"{text} ({worlds.distinct} world{'s' * (worlds.distinct != 1)})"
