"""pass^k: the probability that k attempts at the same start all succeed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from proctor.stats.rates import Interval, wilson_interval


@dataclass(frozen=True)
class PassAll:
    """The estimate of pass^k over the starts with at least k completed episodes."""

    k: int
    rate: float
    interval: Interval
    """95% interval; the starts are the sample."""
    starts: int
    left_out: int
    """Starts with fewer than k completed episodes."""


def pass_all(starts: Sequence[tuple[int, int]], k: int) -> PassAll | None:
    """Estimate pass^k from (successes, completed episodes) of each start; None without data.

    Of a start with c successes in n episodes, C(c, k) / C(n, k) is the share of its sets of k
    episodes that all succeeded: an unbiased estimate of its probability to the power k. The rate is
    the mean over starts. The interval is Wilson's for as many starts: each estimate lies between 0
    and 1, so its variance is at most that of a coin with the same mean.
    """
    known = [(successes, n) for successes, n in starts if n >= k]
    if not known:
        return None
    total = math.fsum(math.comb(successes, k) / math.comb(n, k) for successes, n in known)
    interval = wilson_interval(total, len(known))
    assert interval is not None
    return PassAll(k, total / len(known), interval, len(known), len(starts) - len(known))
