"""Intervals that hold although a run is looked at while it goes on, and stopped for what is seen.

Wilson's interval misses at the end of 5% of runs; who may stop at any of many ends can wait for a
miss. The intervals here miss at *any* moment in at most 5% of runs. Each is a bet: against a rate
p, a capital of 1 is staked on another rate q, so that it is multiplied by q/p with every success
and by (1-q)/(1-p) with every failure. If p is true no such bet is expected to gain, and its capital
ever reaches 1/alpha with probability at most alpha (Ville's inequality): every p against which as
much has been made is ruled out.

Over several tasks with different rates p is their mean, and the above holds at the ends of rounds
(episode i of every task): a factor is 1 + c (outcome - p), so the expected factor of a round is
prod_t (1 + c (p_t - p)) <= (1 + c mean_t (p_t - p))^T = 1, geometric and arithmetic mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from proctor.stats.rates import Interval, WorldCounts, wilson_interval

_HALVINGS = 50


@dataclass(frozen=True)
class AnytimeInterval:
    """A rule that could stop the run watched this rate; ``width``: how narrow it was to become."""

    width: float | None = None


@dataclass(frozen=True)
class MonitoredRates:
    """How the rates of a run were watched. None: its number of episodes was fixed in advance."""

    overall: AnytimeInterval | None = None
    task: AnytimeInterval | None = None
    group: AnytimeInterval | None = None


NOT_WATCHED = MonitoredRates()


def monitored_rates(resolved: Mapping[str, Any]) -> MonitoredRates:
    """Return how a run with these settings was watched."""
    settings = resolved.get("eval")
    rule = settings.get("stop_when") if isinstance(settings, Mapping) else None
    rule = "never" if rule is None else str(rule).strip()
    anyhow = AnytimeInterval()
    if rule == "never":
        against = resolved.get("against") is not None
        return MonitoredRates(anyhow, anyhow, anyhow) if against else NOT_WATCHED
    name, _, number = rule.partition("<")
    try:
        width = float(number)
    except ValueError:
        width = math.nan
    if not 0 < width < 1:  # no rule of ours
        return MonitoredRates(anyhow, anyhow, anyhow)
    if name.strip() == "task_ci_width":
        return MonitoredRates(anyhow, AnytimeInterval(width), anyhow)
    return MonitoredRates(AnytimeInterval(width), anyhow, anyhow)


def rate_interval(
    successes: int,
    n: int,
    worlds: WorldCounts,
    first: tuple[int, int],
    watch: AnytimeInterval | None,
) -> Interval | None:
    """Return a rate's 95% interval, which allows for worlds that repeat; None of no episodes.

    Wilson's where the number of episodes was fixed in advance; else one that holds although the run
    may have stopped at any moment, of the ``first`` episodes of their worlds: successes, and all.
    """
    if watch is not None:
        return anytime_interval(*first, watch.width)
    return wilson_interval(successes, n, effective_n=worlds.effective_n)


def anytime_interval(
    successes: int, n: int, width: float | None, confidence: float = 0.95
) -> Interval | None:
    """Return an interval of a rate that holds at every moment; None when there is nothing to judge.

    With a ``width``, chosen in advance, the stakes are those that make an interval of that width
    soonest; without, they are spread over all rates (Robbins 1970), which does well for any n.
    """
    if n == 0:
        return None
    if width is None:
        return _mixture_interval(successes, n, math.log(1 / (1 - confidence)))
    enough = math.log(2 / (1 - confidence))  # half of the risk for either end
    low = _lower_end(lambda p: _capital(successes, n, p, width), enough, successes / n)
    high = _lower_end(lambda p: _capital(n - successes, n, p, width), enough, 1 - successes / n)
    return low, 1 - high


def _mixture_interval(successes: int, n: int, enough: float) -> Interval:
    """The capital is the mean over all q: Beta(k+1, n-k+1) / (p^k (1-p)^(n-k))."""
    failures = n - successes
    mean = math.lgamma(successes + 1) + math.lgamma(failures + 1) - math.lgamma(n + 2)

    def capital(p: float, won: int) -> float:
        return mean - won * math.log(p) - (n - won) * math.log1p(-p)

    low = _lower_end(lambda p: capital(p, successes), enough, successes / n)
    high = _lower_end(lambda p: capital(p, failures), enough, failures / n)
    return low, 1 - high


def _capital(successes: int, n: int, p: float, width: float) -> float:
    """Return the logarithm of what betting on a higher rate than ``p`` has made.

    The bet is on p + width / 2: that is where the observed rate is when p becomes an end of an
    interval of that width. It makes less against a higher p: what is ruled out has no gaps.
    """
    q = p + width / 2
    if q >= 1:
        return -successes * math.log(p) if successes == n else -math.inf
    return successes * math.log(q / p) + (n - successes) * math.log((1 - q) / (1 - p))


def _lower_end(capital: Callable[[float], float], enough: float, rate: float) -> float:
    """Return the rate below which, down from the one observed, all are ruled out."""
    low, high = 0.0, rate
    if rate == 0:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if capital(middle) >= enough else (low, middle)
    return low
