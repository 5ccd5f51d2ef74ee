"""The mean of paired differences, with an interval that allows for pairs of one start."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from proctor.stats.rates import Interval


def mean_change_interval(
    changes: Sequence[float], starts: Sequence[Hashable], confidence: float = 0.95
) -> Interval | None:
    """Return the interval of the mean of ``changes``; None if it cannot be estimated.

    It is Student's, with a standard error clustered by start (CR1) and one degree of freedom less
    than there are starts. With one start, or if all changes are equal, the variation is unknown.
    """
    n, distinct = len(changes), len(set(starts))
    if distinct < 2:
        return None
    mean = math.fsum(changes) / n
    sums: dict[Hashable, float] = {}
    for change, start in zip(changes, starts, strict=True):
        sums[start] = sums.get(start, 0.0) + change - mean
    spread = math.fsum(total * total for total in sums.values())
    if spread <= 1e-18 * n:
        return None
    from scipy.special import stdtrit

    half = float(stdtrit(distinct - 1, 0.5 + confidence / 2))
    half *= math.sqrt(distinct / (distinct - 1) * spread) / n
    return mean - half, mean + half
