"""Wait for a descriptor without sleeping, if a core is free and the wait is short.

To put a process to sleep and to wake it costs more than a step of many simulators.
"""

import os
import select
import time

_LIMIT_S = 0.002
"""A wait that takes longer ends asleep."""
_CORE_IS_SHARED_S = 200e-6
"""If giving the core away takes longer than this, another process wanted it."""
_CHECK_EVERY = 16
"""Waits between two looks at how many processes want a core."""
_SLEEP_NEXT = 64
"""Waits that go to sleep at once, after one that could not or should not spin."""


class SpinWait:
    """Polls a descriptor for a short time, while no other process wants the core."""

    def __init__(self, descriptor: int) -> None:
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._sleep_next = self._check_in = 0

    def wait(self) -> None:
        """Return when the descriptor is readable, or when the caller should sleep instead."""
        if self._sleep_next:
            self._sleep_next -= 1
            return
        poll = self._poll.poll
        if poll(0):
            return
        if not self._check_in:
            self._check_in = _CHECK_EVERY
            if not core_is_free():
                self._sleep_next = _SLEEP_NEXT
                self._check_in = 0
                return
        self._check_in -= 1
        start = now = time.perf_counter()
        while not poll(0):
            os.sched_yield()
            before, now = now, time.perf_counter()
            if now - before > _CORE_IS_SHARED_S or now - start > _LIMIT_S:
                self._sleep_next = _SLEEP_NEXT
                return


def core_is_free() -> bool:
    """Whether the running processes of this machine, this one included, have a core each."""
    try:
        with open("/proc/loadavg", "rb") as file:  # noqa: PTH123
            running = int(file.read().split()[3].partition(b"/")[0])
        return running <= len(os.sched_getaffinity(0))
    except (OSError, AttributeError, IndexError, ValueError):
        return False  # not Linux
