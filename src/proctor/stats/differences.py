"""Statistics of the difference between two success rates, B - A. Pure functions of counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from proctor.stats.fair_coins import chance_of_lead, limits
from proctor.stats.rates import LEAST_CLUSTERS, Interval

OPEN_END = 1e-9
"""The end of an interval that is cut at 0: it leaves 0 out."""
_NO_VARIANCE = 1e-9


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

    @property
    def exchanged(self) -> Independent:
        """The same with A and B exchanged."""
        return Independent(self.b, self.n_b, self.a, self.n_a)

    def tail(self, d: float) -> float:
        """Return the p-value of "B - A is at most ``d``".

        At 0 it is Fisher's. Elsewhere it is that of fair coins, on its side of Fisher's.
        """
        of_0 = _fisher_tail(self.a, self.n_a, self.b, self.n_b)
        if d == 0:
            return of_0
        elsewhere = chance_of_lead(*self._coins_at(d))
        return max(of_0, elsewhere) if d > 0 else min(of_0, elsewhere)

    def _coins_at(self, d: float) -> tuple[float, float]:
        """Return the lead of B over the difference ``d``, and as many fair coins as it varies.

        The variance is that of the maximum likelihood under ``d`` (Miettinen and Nurminen 1985). A
        success more, with equally many successes in all, is one step of the coins.
        """
        n, step = self.n_a + self.n_b, 2 / (1 / self.n_a + 1 / self.n_b)
        p, q = _restricted_rates(self, d)
        variance = max(p * (1 - p), 0.0) / self.n_a + max(q * (1 - q), 0.0) / self.n_b
        lead = step * (self.b / self.n_b - self.a / self.n_a - d)
        return lead, step * step * variance * n / max(n - 1, 1)


@dataclass(frozen=True)
class Paired:
    """Episodes that both policies completed, by which of them succeeded.

    The counts are no whole numbers where several pairs share a start (``effective_pairs``).
    """

    both: float
    only_a: float
    only_b: float
    neither: float

    @property
    def n(self) -> float:
        """Number of pairs."""
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def difference(self) -> float | None:
        """Rate of B minus rate of A; None without pairs."""
        return (self.only_b - self.only_a) / self.n if self.n else None

    @property
    def exchanged(self) -> Paired:
        """The same with A and B exchanged."""
        return Paired(self.both, self.only_b, self.only_a, self.neither)

    def tail(self, d: float) -> float:
        """Return the p-value of "B - A is at most ``d``"; at 0 it is McNemar's."""
        return chance_of_lead(*self._coins_at(d))

    def _coins_at(self, d: float) -> tuple[float, float]:
        """Return the lead of B over the difference ``d``, and as many fair coins as it varies.

        The variance is that of the maximum likelihood under ``d`` (Tango 1998). With d = 0 there is
        a coin for every pair that only one policy solved: McNemar's exact test.
        """
        n, won, lost = self.n, self.only_b, self.only_a
        lead = won - lost - n * d
        if d == 0:
            return lead, won + lost
        if d < 0:
            won, lost, d = lost, won, -d
        slope = (2 * n - won + lost) * d - won - lost
        rest = lost * d * (1 - d)
        root = math.sqrt(slope * slope + 8 * n * rest)
        lost_share = (root - slope) / (4 * n) if slope <= 0 else 2 * rest / (root + slope)
        return lead, n * max(2 * lost_share + d - d * d, 0.0)


Samples = Independent | Paired


def _restricted_rates(counts: Independent, d: float) -> tuple[float, float]:
    """Return the likeliest rates of A and B whose difference is ``d``: a root of a cubic."""
    a, n_a, b, n_b = counts.a, counts.n_a, counts.b, counts.n_b
    n = n_a + n_b
    if d < 0:
        q, p = _restricted_rates(counts.exchanged, -d)
        return p, q
    square = ((n_b + 2 * n_a) * d - n - a - b) / (3 * n)
    linear = ((n_a * d - n - 2 * a) * d + a + b) / n
    constant = a * d * (1 - d) / n
    depth = math.sqrt(max(square * square - linear / 3, 0.0))
    cube = square**3 - linear * square / 2 + constant / 2
    ratio = -cube / depth**3 if depth > 0 else 0.0
    p = 2 * depth * math.cos(math.acos(min(1.0, max(-1.0, ratio))) / 3 + math.pi / 3 * 4) - square
    p = min(max(p, 0.0), 1 - d)
    return p, p + d


@lru_cache(maxsize=1024)
def _fisher_tail(a: int, n_a: int, b: int, n_b: int) -> float:
    """Return the chance of at least ``b`` successes of B, given the successes of both together."""
    from scipy.special import gammaln

    total = a + b
    of_b = np.arange(b, min(total, n_b) + 1)

    def ways(n: int, k: Any) -> Any:
        return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)

    logs = ways(n_b, of_b) + ways(n_a, total - of_b) - ways(n_a + n_b, total)
    return float(min(1.0, np.exp(logs).sum()))


def effective_pairs(starts: Sequence[Sequence[tuple[bool, bool]]]) -> Paired:
    """Return counts of as many independent pairs as say as much; every start weighs the same.

    Args:
        starts: of every start, the success of A and of B in each of its pairs.
    """
    shares = [[pairs.count(kind) / len(pairs) for kind in _KINDS] for pairs in map(list, starts)]
    worth = variance_ratio([[int(b) - int(a) for a, b in pairs] for pairs in starts])
    return Paired(*(math.fsum(of[kind] for of in shares) / worth for kind in range(4)))


_KINDS = ((True, True), (True, False), (False, True), (False, False))


def variance_ratio(starts: Sequence[Sequence[int]]) -> float:
    """Return the variance of a start's mean value, as a share of that of a single value.

    It is 1 if the values of a start are copies. The estimate is enlarged by Student's quantile at
    95%, and not smaller than if all values were independent. Under ten starts, or if nothing
    varies, they are taken for copies.
    """
    units = len(starts)
    if units < LEAST_CLUSTERS or all(len(values) == 1 for values in starts):
        return 1.0
    means = [sum(values) / len(values) for values in starts]
    mean = math.fsum(means) / units
    squares = (sum(value * value for value in values) / len(values) for values in starts)
    single = math.fsum(squares) / units - mean * mean
    if single < _NO_VARIANCE:
        return 1.0
    from scipy.special import stdtrit

    spread = math.fsum((one - mean) ** 2 for one in means) / (units - 1)
    wider = float(stdtrit(units - 1, 0.975)) / NormalDist().inv_cdf(0.975)
    independent = math.fsum(1 / len(values) for values in starts) / units
    return min(1.0, max(independent, spread / single * wider**2))


def difference_interval(counts: Samples, alpha: float = 0.05) -> Interval | None:
    """Return the interval of B - A with coverage 1 - ``alpha``; None without data.

    It excludes 0 exactly if ``p_value`` is at most ``alpha``.
    """
    if counts.difference is None:
        return None
    return limits(counts.tail, counts.exchanged.tail, counts.difference, alpha)


def p_value(counts: Samples) -> float:
    """Return the two-sided p-value of "A and B have the same success rate"; 1 without data.

    Paired: McNemar's exact test. Independent: Fisher's exact test, each tail doubled.
    """
    if counts.difference is None:
        return 1.0
    return min(1.0, 2 * min(counts.tail(0.0), counts.exchanged.tail(0.0)))


def p_worse(counts: Samples, margin: float) -> float:
    """Return the one-sided p-value of "B is worse than A by at most ``margin``, on average".

    A small value shows that B is worse by more than the margin.
    """
    return 1.0 if counts.difference is None else counts.exchanged.tail(margin)


def compatible_intervals(
    samples: Sequence[Samples], p_holm: Sequence[float], alpha: float
) -> list[Interval | None]:
    """Return an interval of each difference that agrees with its Holm-corrected p-value.

    All of them together cover with probability 1 - ``alpha`` (after Strassburger and Bretz 2008). A
    difference that is significant has an interval at level alpha / number, cut at 0. The others
    share alpha.
    """
    significant = [p <= alpha for p in p_holm]
    left = len(samples) - sum(significant)
    found: list[Interval | None] = []
    for counts, cut in zip(samples, significant, strict=True):
        interval = difference_interval(counts, alpha / (len(samples) if cut else left))
        if interval is None or not cut:
            found.append(interval)
        elif (counts.difference or 0.0) > 0:
            found.append((max(interval[0], OPEN_END), interval[1]))
        else:
            found.append((interval[0], min(interval[1], -OPEN_END)))
    return found


def combined_interval(rate_a: float, of_a: Interval, rate_b: float, of_b: Interval) -> Interval:
    """Return Newcombe's interval of B - A from the interval of each independent rate (1998)."""
    difference = rate_b - rate_a
    low = difference - math.hypot(rate_b - of_b[0], of_a[1] - rate_a)
    high = difference + math.hypot(of_b[1] - rate_b, rate_a - of_a[0])
    return max(-1.0, low), min(1.0, high)


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
            i = np.arange(round(b) + 1)
            lost_a, lost_b = n_a - a + 1, n_b - b + 1
            logs = betaln(a + 1 + i, lost_a + lost_b) - np.log(lost_b + i)
            logs -= betaln(1 + i, lost_b) + betaln(a + 1, lost_a)
            return float(min(1.0, np.exp(logs).sum()))


def detectable_difference(counts: Samples, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """Return the minimum detectable difference with as many episodes as ``counts`` has.

    A two-sided test at ``alpha`` detects it with probability ``power`` (normal approximation, see
    ``_spread``). None: not even the largest possible difference is detected.
    """
    n, spread, room = _spread(counts)
    if not n or _needed(spread, room, alpha, power) > n:
        return None
    low, high = 0.0, room
    for _ in range(100):
        middle = (low + high) / 2
        enough = middle > 0 and _needed(spread, middle, alpha, power) <= n
        low, high = (low, middle) if enough else (middle, high)
    return high


def needed_for(
    counts: Samples, difference: float, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Return how many pairs, or episodes of each policy, detect a difference (see above)."""
    _, spread, room = _spread(counts)
    return _needed(spread, min(difference, room), alpha, power)


_Spread = Callable[[float], tuple[float, float]]
"""The variance of one episode's difference, if the policies are equal and at a difference."""


def _spread(counts: Samples) -> tuple[float, _Spread, float]:
    """Return the episodes, how much they vary, and the largest possible difference.

    Pairs: as many disagree as observed, at least the difference itself. Independent: one rate is
    that of A, the other is nearer to 1/2, which is the harder direction.
    """
    if isinstance(counts, Paired):
        disagreement = (counts.only_a + counts.only_b) / counts.n if counts.n else 0.0

        def of_pairs(difference: float) -> tuple[float, float]:
            share = max(disagreement, difference)
            return share, share - difference**2

        return counts.n, of_pairs, 1.0
    rate = counts.a / counts.n_a if counts.n_a else 0.5
    direction = -1 if rate > 0.5 else 1

    def of_rates(difference: float) -> tuple[float, float]:
        other = rate + direction * difference
        mean = (rate + other) / 2
        return 2 * mean * (1 - mean), rate * (1 - rate) + other * (1 - other)

    return min(counts.n_a, counts.n_b), of_rates, max(rate, 1 - rate)


def _needed(spread: _Spread, difference: float, alpha: float, power: float) -> float:
    """Return n of n d^2 = (z_alpha sqrt(variance if equal) + z_power sqrt(variance at d))^2."""
    z_alpha, z_power = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(power)
    if_equal, at_difference = spread(difference)
    noise = z_alpha * math.sqrt(if_equal) + z_power * math.sqrt(max(0.0, at_difference))
    return (noise / difference) ** 2
