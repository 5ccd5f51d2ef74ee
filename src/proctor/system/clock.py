"""The time of day for records, which advances by a monotonic clock.

Durations are differences of recorded times, and the system's clock may be set while a run lasts: by
NTP, a person, or a virtual machine that wakes up. It is therefore read once a session. Workers are
handed the offset of the process that started them: monotonic clocks are one for all processes of a
machine.
"""

from __future__ import annotations

import time

_LATEST = 9e10
"""Seconds since 1970, in the year 4821. A damaged file may name any later moment."""

_APART_S = 0.001
"""Between two sessions: journals round times to 0.0001 s."""


class _Clock:
    """What is added to the monotonic clock."""

    offset = time.time() - time.monotonic()


def now() -> float:
    """Return seconds since 1970, by the system's clock as it was when the session began."""
    return time.monotonic() + _Clock.offset


def begin_session(not_before: float = 0.0) -> float:
    """Read the system's clock again and return the time.

    ``not_before`` is the last time an earlier session recorded: sessions follow each other, also
    where the system's clock was set back between them.
    """
    began = max(time.time(), min(not_before, _LATEST) + _APART_S)
    _Clock.offset = began - time.monotonic()
    return began


def offset() -> float:
    """Return what ``use_offset`` takes."""
    return _Clock.offset


def use_offset(offset: float) -> None:
    """Use the clock of the process that started this one."""
    _Clock.offset = offset
