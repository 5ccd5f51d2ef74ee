"""Fixed period of a control loop, and how regular its ticks were."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec
import numpy as np

from proctor.robots.base import Clock, RealClock

SPIN_S = 0.001
"""Time before a real tick that is spent reading the clock: a sleep ends late by chance."""
_MOST_TICKS = 200_000
"""Ticks of which the intervals are kept: an hour and more at 50 Hz."""


class Jitter(msgspec.Struct, frozen=True, kw_only=True):
    """Deviation of the intervals between ticks from the period."""

    ticks: int
    period_ms: float
    p50_ms: float | None
    """None for fewer than two ticks, as the others."""
    p99_ms: float | None
    max_ms: float | None
    overruns: int
    """Ticks that began more than a period late; the schedule starts anew after each."""

    def __str__(self) -> str:
        if self.p99_ms is None or self.max_ms is None or self.p50_ms is None:
            return f"{self.ticks} ticks, jitter n/a"
        late = f", {self.overruns} ticks late by a period" if self.overruns else ""
        return (
            f"{self.ticks} ticks of {self.period_ms:.1f} ms, jitter p50 {self.p50_ms:.1f} ms, "
            f"p99 {self.p99_ms:.1f} ms, max {self.max_ms:.1f} ms{late}"
        )


class Pacer:
    """Starts the ticks of a loop at a fixed period on ``clock``.

    Ticks are scheduled at multiples of the period from the first one, so delays do not add up.
    On the real clock the last millisecond before a tick is a busy wait.
    """

    def __init__(self, clock: Clock, fps: float) -> None:
        self._clock, self._period = clock, 1 / fps
        self._next: float | None = None
        self._last: float | None = None
        self._intervals: deque[float] = deque(maxlen=_MOST_TICKS)
        self._overruns = 0
        self._spins = isinstance(clock, RealClock)
        self.ticks = 0

    def tick(self) -> float:
        """Wait for the start of the next tick and return the time; the first one starts now."""
        now = self._clock.now()
        if self._next is None:
            self._next = now
        elif now > self._next + self._period:
            self._overruns += 1
            self._next = now
        else:
            now = self._wait_until(self._next)
        if self._last is not None:
            self._intervals.append(now - self._last)
        self._last = now
        self._next += self._period
        self.ticks += 1
        return now

    def _wait_until(self, moment: float) -> float:
        """Sleep, then read the clock until ``moment``; return the time."""
        self._clock.sleep_until(moment - SPIN_S if self._spins else moment)
        now = self._clock.now()
        while self._spins and now < moment:
            now = self._clock.now()
        return now

    @property
    def rate_hz(self) -> float | None:
        """Ticks per second so far; None for fewer than two ticks."""
        passed = sum(self._intervals)
        return len(self._intervals) / passed if passed > 0 else None

    def jitter(self) -> Jitter:
        """Return the deviations of the intervals between ticks so far."""
        return jitter_of(self._intervals, self._period, self.ticks, self._overruns)


def jitter_of(
    intervals: Iterable[float], period_s: float, ticks: int, overruns: int | None = None
) -> Jitter:
    """Return how far ``intervals`` between ticks, in seconds, deviate from the period.

    Without ``overruns``, intervals that are a period too long are counted.
    """
    deviations = np.abs(np.fromiter(intervals, float) - period_s) * 1000
    p50 = p99 = most = None
    if len(deviations):
        values = (*np.percentile(deviations, (50, 99)), deviations.max())
        p50, p99, most = (round(float(value), 3) for value in values)
    if overruns is None:
        overruns = int((deviations > 1000 * period_s).sum())
    return Jitter(
        ticks=ticks,
        period_ms=round(period_s * 1000, 3),
        p50_ms=p50,
        p99_ms=p99,
        max_ms=most,
        overruns=overruns,
    )
