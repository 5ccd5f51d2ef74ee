"""How long calls of the policy took: counts by size, that sessions add up and quantiles come from.

A size is a power of 1.1 milliseconds: whatever the run's length, a few hundred numbers, and a
quantile that is off by 5% at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_RATIO = math.log(1.1)
_LEAST_S = 1e-6


def size_of(seconds: float) -> int:
    """Return the size that a duration is counted under."""
    return round(math.log(max(seconds, _LEAST_S) * 1000) / _RATIO)


def quantile_ms(calls: Mapping[int, int], share: float) -> float | None:
    """Return how many milliseconds ``share`` of all calls took at most; None where none were."""
    left = math.ceil(share * sum(calls.values()))
    for size, count in sorted(calls.items()):
        left -= count
        if left <= 0 and count:
            return math.exp(size * _RATIO)
    return None


def latency_of(calls: Mapping[int, int]) -> dict[str, float | int | None] | None:
    """Return what a report says of calls; None where none were counted."""
    total = sum(calls.values())
    if not total:
        return None
    shares = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
    return {"calls": total, **{name: quantile_ms(calls, share) for name, share in shares.items()}}
