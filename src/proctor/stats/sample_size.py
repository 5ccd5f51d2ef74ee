"""How many episodes a question needs. Pure functions of rates.

The powers are exact: they are sums over all outcomes of the tests that ``differences.p_value``
computes, Fisher's for independent episodes and McNemar's for paired ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from proctor.features import Array

LEAST_DIFFERENCE = 0.01
"""Smaller differences need more episodes than an evaluation can have."""
LEAST_WIDTH = 0.002
_SPREADS = 7.0
"""Outcomes further from the mean than so many standard deviations are left out (below 1e-11)."""
_STEADY = 6
"""Exact power goes up and down with n; it must reach the wanted power for so many n in a row."""


def episodes_for_width(width: float, rate: float = 0.5, confidence: float = 0.95) -> int:
    """Return the episodes after which Wilson's interval of a rate is at most ``width`` wide.

    The widest interval is that of the rate 1/2, so that number of episodes is enough for any rate.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)

    def enough(n: int) -> bool:
        spread = math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
        return 2 * z / (1 + z * z / n) * spread <= width

    return _first(enough, 1)


def harder_rate(rate: float, difference: float) -> float:
    """Return the other rate at this distance that is harder to tell from ``rate``.

    That is the one nearer to 1/2, where it is possible.
    """
    below, above = rate - difference, rate + difference
    first, second = (below, above) if rate > 0.5 else (above, below)
    return first if 0 <= first <= 1 else second


def possible_agreement(rate_a: float, rate_b: float) -> tuple[float, float]:
    """Return the least and the largest share of pairs in which both outcomes can be equal."""
    return abs(rate_a + rate_b - 1), 1 - abs(rate_a - rate_b)


def agreement_by_chance(rate_a: float, rate_b: float) -> float:
    """Return the share of equal outcomes of two policies whose outcomes are independent."""
    return rate_a * rate_b + (1 - rate_a) * (1 - rate_b)


def episodes_for_difference(
    rate_a: float, rate_b: float, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Return the episodes of each policy after which Fisher's test finds the difference."""
    mean = (rate_a + rate_b) / 2
    equal, different = 2 * mean * (1 - mean), rate_a * (1 - rate_a) + rate_b * (1 - rate_b)
    start = _approximate(abs(rate_b - rate_a), equal, different, alpha, power)
    start += math.ceil(2 / abs(rate_b - rate_a))  # the test is conservative (Casagrande 1978)
    return _steady(lambda n: power_independent(n, rate_a, rate_b, alpha) >= power, start)


def pairs_for_difference(
    difference: float, agreement: float, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Return the pairs of episodes after which McNemar's test finds the difference."""
    share = 1 - agreement
    start = _approximate(difference, share, share - difference**2, alpha, power)
    return _steady(lambda n: power_paired(n, difference, agreement, alpha) >= power, start)


def power_independent(n: int, rate_a: float, rate_b: float, alpha: float = 0.05) -> float:
    """Return the probability that Fisher's exact test finds the difference.

    Args:
        n: episodes of each policy; all are independent.
        rate_a: success rate of A.
        rate_b: success rate of B.
        alpha: significance level of the two-sided test.
    """
    a, of_a = _likely_counts(n, rate_a)
    b, of_b = _likely_counts(n, rate_b)
    totals = np.arange(a[0] + b[0], a[-1] + b[-1] + 1)
    limits = _fisher_limits(n, totals, alpha)
    total = a[:, None] + b[None, :]
    limit = limits[total - totals[0]]
    found = np.minimum(a[:, None], b[None, :]) <= limit
    return float(of_a @ (found @ of_b))


def power_paired(n: int, difference: float, agreement: float, alpha: float = 0.05) -> float:
    """Return the probability that McNemar's exact test finds the difference.

    Args:
        n: pairs of episodes with the same seed.
        difference: success rate of B minus that of A.
        agreement: share of pairs in which both succeed or both fail.
        alpha: significance level of the two-sided test.
    """
    from scipy.special import bdtr

    share = 1 - agreement
    if share <= 0:
        return 0.0
    unequal, chances = _likely_counts(n, share)
    wins_b = min(1.0, (share + abs(difference)) / (2 * share))
    limits = _coin_limits(unequal, alpha)
    rejects = limits >= 0
    few = np.where(rejects, limits, 0)
    low = bdtr(few, unequal, wins_b)
    high = bdtr(few, unequal, 1 - wins_b)
    return float(np.sum(np.where(rejects, low + high, 0.0) * chances))


def _approximate(
    difference: float, if_equal: float, if_different: float, alpha: float, power: float
) -> int:
    """Return the number of episodes in the normal approximation."""
    z_alpha, z_power = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(power)
    noise = z_alpha * math.sqrt(if_equal) + z_power * math.sqrt(max(0.0, if_different))
    return max(1, math.ceil((noise / difference) ** 2))


def _likely_counts(n: int, rate: float) -> tuple[Array, Array]:
    """Return the likely numbers of successes of ``n`` episodes, and their probabilities."""
    from scipy.special import gammaln, xlog1py, xlogy

    reach = _SPREADS * math.sqrt(n * rate * (1 - rate)) + _SPREADS
    k = np.arange(max(0, math.floor(n * rate - reach)), min(n, math.ceil(n * rate + reach)) + 1)
    ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return k, np.asarray(np.exp(ways + xlogy(k, rate) + xlog1py(n - k, -rate)))


def _fisher_limits(n: int, totals: Array, alpha: float) -> Array:
    """Return for each total of successes the largest smaller count that the test rejects.

    With ``n`` episodes of each policy the distribution is symmetric, so Fisher's two-sided p-value
    is twice the tail.
    """
    from scipy.special import gammaln

    spread = np.sqrt(totals * (2.0 * n - totals) / (4 * max(1, 2 * n - 1)))
    guess = np.floor(totals / 2 + NormalDist().inv_cdf(alpha / 2) * spread) + 3
    top = np.clip(guess, np.maximum(0, totals - n), totals // 2)
    rest = totals - top
    logs = gammaln(totals + 1) + gammaln(2 * n - totals + 1) - gammaln(2 * n + 1)
    logs = logs + 2 * gammaln(n + 1) - gammaln(top + 1) - gammaln(n - top + 1)
    logs = logs - gammaln(rest + 1) - gammaln(n - rest + 1)
    below = math.ceil(_SPREADS * float(spread.max()) + _SPREADS)
    x = top[:, None] - np.arange(below)[None, :]  # the ratio of x - 1 to x is 0 at the least x
    ratios = x * (n - totals[:, None] + x) / ((n - x + 1) * (totals[:, None] - x + 1))
    chances = np.exp(logs)[:, None] * np.cumprod(np.maximum(ratios, 0.0), axis=1)
    chances = np.concatenate([np.exp(logs)[:, None], chances], axis=1)
    tails = np.cumsum(chances[:, ::-1], axis=1)[:, ::-1]
    rejected = 2 * tails[:, :-1] <= alpha
    return np.asarray(np.where(rejected & (chances[:, :-1] > 0), x, -1).max(axis=1))


def _coin_limits(unequal: Array, alpha: float) -> Array:
    """Return for each number of unequal pairs the largest smaller count that McNemar rejects."""
    from scipy.special import bdtr

    guess = np.floor(unequal / 2 + NormalDist().inv_cdf(alpha / 2) * np.sqrt(unequal) / 2)
    limits = np.full(len(unequal), -1)
    for step in range(-3, 4):
        k = guess.astype(int) + step
        allowed = (k >= 0) & (k <= unequal)
        p = 2 * bdtr(np.where(allowed, k, 0), unequal, 0.5)
        limits = np.where(allowed & (p <= alpha), np.maximum(limits, k), limits)
    return limits


def _steady(enough: Callable[[int], bool], start: int) -> int:
    """Return the first number from which on ``enough`` holds for some numbers in a row."""
    n = _first(enough, start)
    while True:
        failed = next((i for i in range(n + _STEADY, n, -1) if not enough(i)), None)
        if failed is None:
            return n
        n = _first_from(enough, failed + 1)


def _first_from(enough: Callable[[int], bool], n: int) -> int:
    while not enough(n):
        n += 1
    return n


def _first(enough: Callable[[int], bool], start: int) -> int:
    """Return the smallest number that is enough, by doubling and bisection from ``start``."""
    high = max(1, start)
    while not enough(high):
        high = high + max(1, high // 8)
    low, step = high, 1
    while low > 0 and enough(low):
        low, step = max(0, low - step), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
