"""Three answers to "does a measured rate agree with a claimed one?", from an interval."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from proctor.errors import UsageError
from proctor.stats.rates import Interval
from proctor.types import MAX_EPISODES

DEFAULT_MARGIN = 0.1
"""Largest difference of success rates that still agrees: 10 points."""


class Verdict(Enum):
    """What a run says about a claim."""

    AGREES = "agrees"
    CONTRADICTS = "contradicts"
    UNDECIDED = "undecided"

    @property
    def exit_code(self) -> int:
        """The exit code of commands that check a claim."""
        return {Verdict.AGREES: 0, Verdict.CONTRADICTS: 3, Verdict.UNDECIDED: 4}[self]


def require_margin(margin: float) -> None:
    """Refuse a margin that is no difference of two rates."""
    if not 0 < margin < 1:
        raise UsageError(
            f"--margin must be between 0 and 1, got {margin:g}", code="flag.out-of-range"
        )


def verdict_of(interval: Interval, margin: float) -> Verdict:
    """Return the verdict of the interval of a difference.

    Without 0 in it the run contradicts the claim, however small the difference is. With 0, and
    within ``margin`` of it, the two are equivalent.
    """
    low, high = interval
    if low > 0 or high < 0:
        return Verdict.CONTRADICTS
    return Verdict.AGREES if -margin <= low and high <= margin else Verdict.UNDECIDED


def episodes_to_decide(
    interval_after: Callable[[float], Interval | None], margin: float, n: int
) -> int | None:
    """Return about how many episodes decide in all; None: no number of them does.

    Args:
        interval_after: returns the interval of the difference after a multiple of the run's
            episodes, if the rates stay as they are.
        margin: as in ``verdict_of``.
        n: number of the run's episodes.
    """

    def decides(episodes: int) -> bool:
        found = interval_after(episodes / n)
        return found is not None and verdict_of(found, margin) is not Verdict.UNDECIDED

    low, high = n, 2 * n
    while not decides(high):
        low, high = high, 2 * high
        if low > MAX_EPISODES:
            return None
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high
