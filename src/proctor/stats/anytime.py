"""Anytime-valid confidence intervals: valid even if the run is stopped because of its results.

Wilson's interval misses the true rate in 5% of runs of a fixed size. A run that may stop at any of
many moments can wait for a miss. The intervals here miss at *any* moment in at most 5% of runs.

Each interval inverts a betting test. Against a rate p, a capital of 1 is bet on another rate q: it
is multiplied by q/p with every success and by (1-q)/(1-p) with every failure. If p is true, no bet
has a positive expected gain. By Ville's inequality its capital ever reaches 1/alpha with
probability at most alpha. So every p against which the capital reached 1/alpha is ruled out.

Over several tasks with different rates p_t, p is their mean. The test then holds at the ends of
rounds (episode i of every task): a factor is 1 + c (outcome - p), so the expected factor of a round
is prod_t (1 + c (p_t - p)) <= (1 + c mean_t (p_t - p))^T = 1, by the inequality of the geometric
and the arithmetic mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from proctor.stats.independent_units import UnitCounts
from proctor.stats.rates import Interval
from proctor.stats.task_rates import these_tasks_interval

_HALVINGS = 50


@dataclass(frozen=True)
class AnytimeInterval:
    """A rate monitored by a stop rule needs an anytime-valid interval.

    ``width`` is the width at which the rule stops the run, if it is a rule about this width.
    """

    width: float | None = None


@dataclass(frozen=True)
class MonitoredRates:
    """Which rates a stop rule monitors. None: the number of episodes was fixed in advance."""

    overall: AnytimeInterval | None = None
    task: AnytimeInterval | None = None
    group: AnytimeInterval | None = None


NOT_MONITORED = MonitoredRates()


def monitored_rates(resolved: Mapping[str, Any]) -> MonitoredRates:
    """Return which rates a stop rule monitors in a run with these resolved settings."""
    settings = resolved.get("eval")
    rule = settings.get("stop_when") if isinstance(settings, Mapping) else None
    rule = "never" if rule is None else str(rule).strip()
    any_width = AnytimeInterval()
    if rule == "never":
        against = resolved.get("against") is not None
        return MonitoredRates(any_width, any_width, any_width) if against else NOT_MONITORED
    name, _, number = rule.partition("<")
    try:
        width = float(number)
    except ValueError:
        width = math.nan
    if not 0 < width < 1:  # a rule that this version does not know
        return MonitoredRates(any_width, any_width, any_width)
    if name.strip() == "task_ci_width":
        return MonitoredRates(any_width, AnytimeInterval(width), any_width)
    return MonitoredRates(AnytimeInterval(width), any_width, any_width)


def rate_interval(
    units: UnitCounts, anytime: AnytimeInterval | None, factor: float = 1
) -> Interval | None:
    """Return a rate's 95% interval, corrected for repeated starts; None without episodes.

    It is that of these tasks if the number of episodes was fixed in advance, otherwise an
    anytime-valid one, which pools the tasks.

    Args:
        units: the independent units of the completed episodes.
        anytime: set if a stop rule monitors the rate.
        factor: return the interval of so many times as many episodes with the same rates.
    """
    if anytime is not None:
        successes, n = units.first
        return anytime_interval(round(factor * successes), round(factor * n), anytime.width)
    return these_tasks_interval(units.total, units.tasks, factor=factor)


def anytime_interval(
    successes: int, n: int, width: float | None, confidence: float = 0.95
) -> Interval | None:
    """Return an anytime-valid interval of a rate; None without episodes.

    With a ``width`` chosen in advance, the bet is the one that reaches this width soonest. Without,
    the bet is a uniform mixture over all rates (Robbins 1970), which works well for any n.
    """
    if n == 0:
        return None
    if width is None:
        return _mixture_interval(successes, n, math.log(1 / (1 - confidence)))
    enough = math.log(2 / (1 - confidence))  # half of the error probability for each end
    low = _lower_end(lambda p: _capital(successes, n, p, width), enough, successes / n)
    high = _lower_end(lambda p: _capital(n - successes, n, p, width), enough, 1 - successes / n)
    return low, 1 - high


def _mixture_interval(successes: int, n: int, enough: float) -> Interval:
    """Invert the mixture test: its capital is Beta(k+1, n-k+1) / (p^k (1-p)^(n-k))."""
    failures = n - successes
    mean = math.lgamma(successes + 1) + math.lgamma(failures + 1) - math.lgamma(n + 2)

    def capital(p: float, hits: int) -> float:
        return mean - hits * math.log(p) - (n - hits) * math.log1p(-p)

    low = _lower_end(lambda p: capital(p, successes), enough, successes / n)
    high = _lower_end(lambda p: capital(p, failures), enough, failures / n)
    return low, 1 - high


def _capital(successes: int, n: int, p: float, width: float) -> float:
    """Return the log capital of a bet on a rate higher than ``p``.

    The bet is on p + width / 2, the observed rate when p is an end of an interval of that width.
    The capital decreases with p, so the rates that are ruled out have no gaps.
    """
    q = p + width / 2
    if q >= 1:
        return -successes * math.log(p) if successes == n else -math.inf
    return successes * math.log(q / p) + (n - successes) * math.log((1 - q) / (1 - p))


def _lower_end(capital: Callable[[float], float], enough: float, rate: float) -> float:
    """Return the lower end of the interval by bisection: all rates below it are ruled out."""
    low, high = 0.0, rate
    if rate == 0:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if capital(middle) >= enough else (low, middle)
    return low
