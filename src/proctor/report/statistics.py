"""Statistics of success rates: pure functions of counts."""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return Wilson's score interval of a proportion; None when there is nothing to judge.

    Unlike p +- z*sqrt(p(1-p)/n) it keeps its coverage for small n and for rates near 0 and 1.
    """
    if n == 0:
        return None
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def rate_text(successes: int, n: int) -> str:
    """Return ``71.3% [67.0, 75.3] n=450``, or ``n/a`` when nothing was measured."""
    interval = wilson_interval(successes, n)
    if interval is None:
        return "n/a"
    low, high = interval
    return f"{100 * successes / n:.1f}% [{100 * low:.1f}, {100 * high:.1f}] n={n}"
