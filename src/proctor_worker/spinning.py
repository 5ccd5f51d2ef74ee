"""Wait for a descriptor without sleeping, if a core is free and the wait is short.

To put a process to sleep and to wake it costs more than a step of many simulators.
"""

import os
import select
import time

_LIMIT_S = 0.002
"""A wait that takes longer ends asleep."""
_CORE_IS_SHARED_S = 50e-6
"""If giving the core away takes longer than this, another process wants it."""
_MOST_SKIPPED = 8
"""After repeated failures, two to this power waits go to sleep at once."""


class SpinWait:
    """Polls a descriptor for a short time. It stops as soon as another process wants the core."""

    def __init__(self, descriptor: int) -> None:
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._failures = 0
        self._skip = 0 if hasattr(os, "sched_yield") else -1

    def wait(self) -> None:
        """Return when the descriptor is readable, or when the caller should sleep instead."""
        if self._skip:
            self._skip -= self._skip > 0
            return
        poll = self._poll.poll
        if poll(0):
            return
        start = now = time.perf_counter()
        while True:
            os.sched_yield()
            before, now = now, time.perf_counter()
            if poll(0):
                self._failures = 0
                return
            if now - before > _CORE_IS_SHARED_S or now - start > _LIMIT_S:
                self._failures = min(self._failures + 1, _MOST_SKIPPED)
                self._skip = 2**self._failures
                return
