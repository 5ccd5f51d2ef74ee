"""Histogram of the policy's inference latency, with logarithmic buckets.

Bucket b holds calls of about 1.1**b milliseconds. A histogram has a few hundred buckets at most,
adds up over sessions, and its quantiles are off by 5% at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_RATIO = math.log(1.1)
_MIN_S = 1e-6


def bucket_of(seconds: float) -> int:
    """Return the bucket of a duration."""
    return round(math.log(max(seconds, _MIN_S) * 1000) / _RATIO)


def quantile_ms(calls: Mapping[int, int], share: float) -> float | None:
    """Return the ``share`` quantile in milliseconds of counts by bucket; None without calls."""
    left = math.ceil(share * sum(calls.values()))
    for bucket, count in sorted(calls.items()):
        left -= count
        if left <= 0 and count:
            return math.exp(bucket * _RATIO)
    return None


def latency_summary(calls: Mapping[int, int]) -> dict[str, float | int | None] | None:
    """Return the number of calls and their quantiles for a report; None without calls."""
    total = sum(calls.values())
    if not total:
        return None
    shares = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
    return {"calls": total, **{name: quantile_ms(calls, share) for name, share in shares.items()}}
