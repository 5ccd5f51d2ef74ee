"""Fair coins: one function of a difference d for the test, the interval and the gate.

Under the hypothesis that the true difference is d, the observed lead of B varies. The chance of a
lead this large is that of as many fair coins as have the same variance. An interval holds every d
that the test does not reject, so an interval and a verdict never contradict each other:
p <= alpha exactly if the closed interval excludes 0.
"""

from __future__ import annotations

from collections.abc import Callable

from proctor.stats.rates import Interval

Tail = Callable[[float], float]
"""p-value of "B - A is at most d": small if the true difference is larger. It rises with d."""
_HALVINGS = 50


def chance_of_lead(lead: float, coins: float) -> float:
    """Return the probability that ``coins`` fair coins lead by ``lead`` or more."""
    from scipy.special import betainc

    heads, tails = (coins + lead) / 2, (coins - lead) / 2 + 1
    if heads <= 0:
        return 1.0
    return float(betainc(heads, tails, 0.5)) if tails > 0 else 0.0


def limits(larger: Tail, smaller: Tail, estimate: float, alpha: float) -> Interval:
    """Return the closed interval of the differences that the two-sided test does not reject.

    ``smaller`` is the tail with A and B exchanged.
    """
    return _low(larger, estimate, alpha / 2), -_low(smaller, -estimate, alpha / 2)


def _low(tail: Tail, estimate: float, level: float) -> float:
    """Return the smallest difference that the one-sided test at ``level`` does not reject.

    The test at 0 comes first, and the search stays on the side of 0 that it leaves.
    """
    outside, inside = (0.0, estimate) if tail(0.0) <= level else (-1.0, min(0.0, estimate))
    for _ in range(_HALVINGS):
        middle = (outside + inside) / 2
        if tail(middle) <= level:
            outside = middle
        else:
            inside = middle
    return -1.0 if outside == -1.0 else inside
