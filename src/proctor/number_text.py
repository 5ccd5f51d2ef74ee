"""Format rates, differences of rates and the limits of their intervals.

A printed number never reaches or crosses a bound that the number does not reach: 99.97 is printed
as 99.9, and a lower limit of +0.02 as +0.1. So an interval that is printed without 0 has no 0 in
it, and 100.0 means 100. ``parts.js`` formats the same numbers for the pages.
"""

from __future__ import annotations

from collections.abc import Iterable

_STEP = 0.1
_RATE_BOUNDS = (0.0, 100.0)
_DIFFERENCE_BOUNDS = (-100.0, 0.0, 100.0)


def percent_text(rate: float | None, scale: float = 100) -> str:
    """Return a rate as ``71.3%``, or ``n/a``; ``scale`` 1: it is in percent already."""
    if rate is None:
        return "n/a"
    return f"{_rounded(scale * rate, _RATE_BOUNDS):.1f}%"


def interval_text(ends: Iterable[float], scale: float = 100) -> str:
    """Return the interval of a rate as ``[67.0, 75.3]``; ``scale`` 1: it is in percent already."""
    return f"[{', '.join(f'{_rounded(scale * end, _RATE_BOUNDS):.1f}' for end in ends)}]"


def points_text(difference: float | None, interval: Iterable[float] | None) -> str:
    """Return a difference of two rates as ``+12.0 [+3.1, +20.4]``, in points, or ``n/a``."""
    if difference is None or interval is None:
        return "n/a"
    ends = ", ".join(map(_points, interval))
    return f"{_points(difference)} [{ends}]"


def _points(difference: float) -> str:
    return f"{_rounded(100 * difference, _DIFFERENCE_BOUNDS):+.1f}"


def _rounded(value: float, bounds: Iterable[float]) -> float:
    """Round to one digit, but never onto or across a bound that ``value`` does not reach."""
    shown = round(value, 1) + 0.0  # no negative zero
    for bound in bounds:
        if value < bound <= shown:
            return bound - _STEP
        if shown <= bound < value:
            return bound + _STEP
    return shown


def number_ranges(numbers: Iterable[int]) -> str:
    """Return ``1,4-7`` for 1, 4, 5, 6, 7."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
