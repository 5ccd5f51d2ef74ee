"""Statistics of the difference between two paired drops, B - A. Pure functions of counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from proctor.features import Array
from proctor.stats.differences import Paired, difference_interval
from proctor.stats.rates import Interval


@dataclass(frozen=True)
class PairedDrops:
    """Drops of two policies on the same pairs of perturbed and clean episodes.

    A pair's loss is 1 if only the clean episode succeeded, -1 if only the perturbed one did.
    """

    a: Paired
    b: Paired
    """Of each policy: A is the perturbed episode, B the clean one."""
    losses_a: Sequence[int]
    losses_b: Sequence[int]
    """The loss of every pair, in one order."""
    starts: Sequence[object]
    """The independent unit of every pair."""
    effective_n: float

    @property
    def difference(self) -> float | None:
        """The drop of B minus the drop of A; None without pairs."""
        if self.a.difference is None or self.b.difference is None:
            return None
        return self.b.difference - self.a.difference


def drop_difference_interval(drops: PairedDrops, confidence: float = 0.95) -> Interval | None:
    """Return an interval of the difference between two drops; None without pairs.

    It combines Newcombe's intervals of the drops (MOVER, Zou and Donner 2008), as Newcombe's own
    method combines intervals of rates. The correlation is that of the losses, and reduced as in
    Newcombe's method if it is positive.
    """
    n = drops.effective_n or None
    of_a = difference_interval(drops.a, confidence, effective_a=n, effective_b=n)
    of_b = difference_interval(drops.b, confidence, effective_a=n, effective_b=n)
    drop_a, drop_b = drops.a.difference, drops.b.difference
    if of_a is None or of_b is None or drop_a is None or drop_b is None:
        return None
    r = _correlation(np.array(drops.losses_a), np.array(drops.losses_b), drops.effective_n)

    def length(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x - 2 * r * x * y + y * y))

    low = drop_b - drop_a - length(drop_b - of_b[0], of_a[1] - drop_a)
    high = drop_b - drop_a + length(of_b[1] - drop_b, drop_a - of_a[0])
    return max(-2.0, low), min(2.0, high)


def _correlation(a: Array, b: Array, effective_n: float) -> float:
    """Return the correlation of the losses; a positive one is reduced by its standard error."""
    spread = float(a.std() * b.std())
    if spread == 0:
        return 0.0
    r = float(((a - a.mean()) * (b - b.mean())).mean()) / spread
    return r if r <= 0 else max(0.0, r - 1 / math.sqrt(effective_n))


def drop_difference_p_value(drops: PairedDrops) -> float:
    """Return the exact two-sided p-value of "A and B lose alike"; 1 without pairs.

    If they do, the two policies can be swapped in every start. So the sum of the differences is
    compared with those of all such swaps.
    """
    of_start: dict[object, int] = {}
    for start, a, b in zip(drops.starts, drops.losses_a, drops.losses_b, strict=True):
        of_start[start] = of_start.get(start, 0) + b - a
    sizes = [abs(total) for total in of_start.values() if total]
    chances = np.ones(1)  # of every sum of +-size, from the lowest to the highest
    for size in sizes:
        kernel = np.zeros(2 * size + 1)
        kernel[[0, -1]] = 0.5
        chances = np.convolve(chances, kernel)
    sums = np.arange(len(chances)) - sum(sizes)
    return min(1.0, float(chances[np.abs(sums) >= abs(sum(of_start.values()))].sum()))
