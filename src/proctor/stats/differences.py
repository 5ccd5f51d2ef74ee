"""Statistics of the difference between two success rates, B - A. Pure functions of counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from proctor.features import Array
from proctor.stats.rates import Interval, clopper_pearson_interval, wilson_interval

_NUISANCE_RISK = 1e-4
"""Error probability of the nuisance parameter's interval, added to p-values (Berger, Boos)."""
_NUISANCE_POINTS = 101


@dataclass(frozen=True)
class Independent:
    """Successes and episodes of two rates from independent episodes."""

    a: int
    n_a: int
    b: int
    n_b: int

    @property
    def difference(self) -> float | None:
        """Rate of B minus rate of A; None if either has no episodes."""
        return self.b / self.n_b - self.a / self.n_a if self.n_a and self.n_b else None


@dataclass(frozen=True)
class Paired:
    """Episodes that both policies completed, by which of them succeeded."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def n(self) -> int:
        """Number of pairs."""
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def difference(self) -> float | None:
        """Rate of B minus rate of A; None without pairs."""
        return (self.only_b - self.only_a) / self.n if self.n else None


Samples = Independent | Paired


def difference_interval(
    counts: Samples,
    confidence: float = 0.95,
    *,
    effective_a: float | None = None,
    effective_b: float | None = None,
) -> Interval | None:
    """Return Newcombe's hybrid score interval of B - A; None without data.

    Independent rates: method 10 of 1998 (Statistics in Medicine 17, 873-890). Paired: method 10 of
    the companion paper (17, 2635-2650), in which correlated outcomes make the interval shorter.
    ``effective_a`` and ``effective_b`` are effective numbers of episodes if these share starts.
    """
    match counts:
        case Independent(a, n_a, b, n_b):
            correlation = 0.0
        case Paired(both, only_a, only_b):
            n_a = n_b = counts.n
            a, b = both + only_a, both + only_b
            correlation = _correlation(counts, min(effective_a or n_a, effective_b or n_b))
    of_a = wilson_interval(a, n_a, confidence, effective_n=effective_a)
    of_b = wilson_interval(b, n_b, confidence, effective_n=effective_b)
    if of_a is None or of_b is None:
        return None
    return combined_interval(a / n_a, of_a, b / n_b, of_b, correlation)


def combined_interval(
    rate_a: float, of_a: Interval, rate_b: float, of_b: Interval, correlation: float = 0.0
) -> Interval:
    """Return Newcombe's interval of B - A from the interval of each rate."""
    difference = rate_b - rate_a
    low = difference - _length(rate_b - of_b[0], of_a[1] - rate_a, correlation)
    high = difference + _length(of_b[1] - rate_b, rate_a - of_a[0], correlation)
    return max(-1.0, low), min(1.0, high)


def _length(x: float, y: float, correlation: float) -> float:
    return math.sqrt(max(0.0, x * x - 2 * correlation * x * y + y * y))


def _correlation(counts: Paired, effective_n: float) -> float:
    """Return Newcombe's phi: the correlation of the outcomes, corrected if positive.

    The correction is that of ``effective_n`` pairs with the same shares.
    """
    a, b = counts.both + counts.only_a, counts.both + counts.only_b
    margins = a * (counts.n - a) * b * (counts.n - b)
    if margins == 0:
        return 0.0
    excess: float = counts.both * counts.neither - counts.only_a * counts.only_b
    if excess > 0:
        excess = max(excess - counts.n**2 / (2 * effective_n), 0.0)
    return excess / math.sqrt(margins)


def p_value(counts: Samples) -> float:
    """Return the exact two-sided p-value of "A and B have the same success rate"; 1 without data.

    Paired: McNemar's exact test, a fair coin for every episode that only one policy solved.
    Independent: Fisher's exact test.
    """
    match counts:
        case Independent(a, n_a, b, n_b):
            if not n_a or not n_b:
                return 1.0
            from scipy.stats import fisher_exact

            return min(1.0, float(fisher_exact([[a, n_a - a], [b, n_b - b]]).pvalue))
        case Paired(_, only_a, only_b):
            from scipy.special import bdtr

            less, n = min(only_a, only_b), only_a + only_b
            return min(1.0, 2 * float(bdtr(less, n, 0.5)))


def p_worse(counts: Samples, margin: float) -> float:
    """Return the one-sided p-value of "B is worse than A by at most ``margin``, on average".

    A small value shows that B is worse by more than the margin.

    Paired: a one-sided McNemar test in which B is given as many extra wins as the margin allows. It
    keeps its level over any mix of tasks, even if another policy is better on each task. This was
    checked by enumeration: the hypothesis bounds the mean over all pairs, extra ones included, and
    a mix of sure and unsure pairs varies less than fair coins do.

    Independent rates: the exact unconditional test. The probability of a B - A as low as the
    observed one is taken at a true difference of ``-margin``, and maximised over the rate of A
    within its 99.99% interval. The missing 0.01% is added (Suissa and Shuster 1985, Berger and Boos
    1994). Here too, no mix of tasks is worse than equal tasks, checked by enumeration.
    """
    match counts:
        case Independent(a, n_a, b, n_b):
            if not n_a or not n_b:
                return 1.0
            assert n_a == n_b, "compare as many episodes of A as of B"
            nuisance = clopper_pearson_interval(a, n_a, 1 - _NUISANCE_RISK)
            return _worst(nuisance, margin, lambda rate: _tail_two(b - a, n_a, rate, margin))
        case Paired(_, only_a, only_b):
            from scipy.special import bdtr

            allowed = math.ceil(counts.n * margin - 1e-9)  # 100 * 0.07 is not quite 7
            return float(bdtr(only_b + allowed, only_a + only_b + allowed, 0.5))


def _worst(nuisance: Interval | None, least: float, tail: Callable[[float], float]) -> float:
    """Return the largest tail over the possible part of the nuisance parameter's interval."""
    assert nuisance is not None
    low, high = max(nuisance[0], least), max(nuisance[1], least)
    points = np.linspace(low, high, _NUISANCE_POINTS)
    return min(1.0, max(tail(float(point)) for point in points) + _NUISANCE_RISK)


def _tail_two(lead: int, n: int, rate_a: float, margin: float) -> float:
    """Return P(B's successes - A's successes <= lead), ``n`` episodes each, B's rate lower."""
    of_a, of_b = _binomial(n, rate_a), _binomial(n, rate_a - margin)
    at_most_b = np.cumsum(of_b)
    ends = np.clip(np.arange(n + 1) + lead, -1, n)  # the most successes of B if A has i
    return _clipped_sum(np.where(ends >= 0, at_most_b[ends], 0.0) * of_a)


def _binomial(n: int, p: float) -> Array:
    from scipy.special import gammaln, xlog1py, xlogy

    k = np.arange(n + 1)
    ways: Any = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return np.asarray(np.exp(ways + xlogy(k, p) + xlog1py(n - k, -p)))


def _clipped_sum(probabilities: Array) -> float:
    return float(min(1.0, max(0.0, probabilities.sum())))


def probability_b_better(counts: Samples) -> float:
    """Return the posterior probability P(rate of B > rate of A) under flat priors.

    Independent: Beta(1, 1) for each rate. Paired: Beta(1, 1) for the probability that B solves an
    episode that only one policy solves; it exceeds 1/2 exactly when B's rate is higher.
    """
    from scipy.special import betaincc, betaln

    match counts:
        case Paired(_, only_a, only_b):
            return float(betaincc(only_b + 1, only_a + 1, 0.5))
        case Independent(a, n_a, b, n_b):
            i = np.arange(b + 1)
            lost_a, lost_b = n_a - a + 1, n_b - b + 1
            logs = betaln(a + 1 + i, lost_a + lost_b) - np.log(lost_b + i)
            logs -= betaln(1 + i, lost_b) + betaln(a + 1, lost_a)
            return _clipped_sum(np.exp(logs))


def detectable_difference(
    n: int, rate: float, alpha: float = 0.05, power: float = 0.8
) -> float | None:
    """Return the minimum detectable difference with ``n`` episodes of each policy.

    A two-sided test at ``alpha`` detects it with probability ``power`` (normal approximation). One
    rate is ``rate``, the other is nearer to 1/2, which is the harder direction. None: not even the
    largest possible difference is detected.
    """
    direction = -1 if rate > 0.5 else 1
    room = rate if direction < 0 else 1 - rate

    def spread(difference: float) -> tuple[float, float]:
        other = rate + direction * difference
        mean = (rate + other) / 2
        return 2 * mean * (1 - mean), rate * (1 - rate) + other * (1 - other)

    return _detectable(n, room, spread, alpha, power)


def detectable_difference_paired(
    n: int, disagreement: float, alpha: float = 0.05, power: float = 0.8
) -> float | None:
    """Return the minimum detectable difference with ``n`` pairs; see ``detectable_difference``.

    ``disagreement`` is the share of pairs that only one policy solves; at least the difference
    itself. The lower it is, the smaller the detectable difference.
    """

    def spread(difference: float) -> tuple[float, float]:
        share = max(disagreement, difference)
        return share, share - difference**2

    return _detectable(n, 1.0, spread, alpha, power)


def _detectable(
    n: int, room: float, spread: Callable[[float], tuple[float, float]], alpha: float, power: float
) -> float | None:
    """Solve n d^2 = (z_alpha sqrt(variance if equal) + z_power sqrt(variance at d))^2 for d."""
    z_alpha, z_power = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(power)

    def surplus(difference: float) -> float:
        if_equal, at_difference = spread(difference)
        noise = z_alpha * math.sqrt(if_equal) + z_power * math.sqrt(max(0.0, at_difference))
        return math.sqrt(n) * difference - noise

    if n == 0 or surplus(room) < 0:
        return None
    low, high = 0.0, room
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if surplus(middle) >= 0 else (middle, high)
    return high
