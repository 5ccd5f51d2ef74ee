"""Wall-clock time for records, advanced by a monotonic clock.

Durations are differences of recorded times, and the system clock may be set during a run: by NTP, a
user, or a virtual machine that wakes up. Each session therefore reads the system clock once.
Workers use the offset of the process that started them: all processes of a machine share one
monotonic clock.
"""

from __future__ import annotations

import time

_LATEST = 9e10
"""Seconds since 1970, in the year 4821. A damaged file may hold any later time."""

_APART_S = 0.001
"""Least time between two sessions: journals round times to 0.0001 s."""


class _Clock:
    """The offset that is added to the monotonic clock."""

    offset = time.time() - time.monotonic()


def now() -> float:
    """Return seconds since 1970, by the system clock as it was when the session began."""
    return time.monotonic() + _Clock.offset


def begin_session(not_before: float = 0.0) -> float:
    """Read the system clock again and return the time.

    ``not_before`` is the last time that an earlier session recorded. Sessions never overlap, even
    if the system clock was set back between them.
    """
    began = max(time.time(), min(not_before, _LATEST) + _APART_S)
    _Clock.offset = began - time.monotonic()
    return began


def offset() -> float:
    """Return the offset for ``use_offset``."""
    return _Clock.offset


def use_offset(offset: float) -> None:
    """Use the clock of the process that started this one."""
    _Clock.offset = offset
