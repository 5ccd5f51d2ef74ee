"""The difference between two drops, B - A, by the method of ``differences``."""

from __future__ import annotations

import math
from collections.abc import Hashable

from proctor.stats.differences import Paired, difference_interval, p_value, variance_ratio
from proctor.stats.rates import Interval


class DropDifference:
    """The drop of B minus the drop of A, over the same pairs of perturbed and clean episodes.

    A pair's difference lies between -2 and 2. Half of it counts like the difference of a pair of
    episodes. Most are 0 or 1, so the steps of the coins are near 1/2: as large as the variance is.
    """

    def __init__(self) -> None:
        self._starts: dict[Hashable, list[int]] = {}

    def add(self, start: Hashable, loss_a: int, loss_b: int) -> None:
        """Count a pair: 1 if only its clean episode succeeded, -1 if only the perturbed one."""
        self._starts.setdefault(start, []).append(loss_b - loss_a)

    @property
    def _counts(self) -> Paired:
        starts = list(self._starts.values())
        more, less, squares = (
            math.fsum(sum(map(part, values)) / len(values) for values in starts)
            for part in (lambda d: max(d, 0), lambda d: max(-d, 0), lambda d: d * d)
        )
        step = squares / (more + less) / 2 if more + less else 0.5
        worth = step * variance_ratio(starts)
        equal = len(starts) - (more + less) / 2
        return Paired(equal / worth, less / 2 / worth, more / 2 / worth, 0.0)

    @property
    def difference(self) -> float | None:
        """The drop of B minus the drop of A; None without pairs."""
        half = self._counts.difference
        return None if half is None else 2 * half

    def interval(self, alpha: float = 0.05) -> Interval | None:
        """Return its interval with coverage 1 - ``alpha``; None without pairs."""
        half = difference_interval(self._counts, alpha)
        return None if half is None else (2 * half[0], 2 * half[1])

    @property
    def p_value(self) -> float:
        """The two-sided p-value of "A and B lose alike"; 1 without pairs."""
        return p_value(self._counts)
