"""Stop signals of a training, and the timer of its checkpoints.

The first signal lets the running step end, so that the training can write a checkpoint. The second
leaves at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from proctor.callbacks.interrupts import Interrupts
from proctor.errors import TrainingError

T = TypeVar("T")
_SAME_REQUEST_S = 0.5
"""Signals within this time are one request: ``timeout`` signals a process and its process group,
and systemd sends SIGTERM and SIGHUP together."""
_STOPPING = "stopping after this step{}; interrupt again to leave at once\n"


class StopRequests(Interrupts):
    """Turns the first stop signal into a request, and others into KeyboardInterrupt.

    Outside ``deferring`` the first signal raises KeyboardInterrupt too: there is no step to finish.
    In a thread other than the main one it changes nothing, since Python allows no handlers there.
    """

    def __init__(self, why: str = ", to write a checkpoint") -> None:
        """Prepare; ``why`` is part of the line that is printed after the first signal."""
        super().__init__()
        self._announcement = _STOPPING.format(why).encode()
        self.requested: signal.Signals | None = None
        """The first signal."""
        self.repeated = False
        """Whether a second signal came."""
        self.is_announced = True
        """Whether this process tells the user that it is stopping."""
        self._deferring = False

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            super().__enter__()
        return self

    def _interrupt(self, signum: int, frame: Any) -> None:
        if self._asked_at is not None and time.monotonic() - self._asked_at < _SAME_REQUEST_S:
            return
        self._note(signal.Signals(signum))
        self.repeated = self.requested is not None
        self.requested = self.requested or signal.Signals(signum)
        if self.repeated or not self._deferring:
            raise KeyboardInterrupt(self._asked_by)
        if self.is_announced:
            with contextlib.suppress(OSError):  # the terminal may be gone
                os.write(2, self._announcement)  # print() is not reentrant

    def request(self) -> None:
        """Ask the training to stop after the running step, as the first signal does."""
        self.requested = self.requested or signal.SIGINT

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Let the first signal of the block only set ``requested``.

        Raises:
            KeyboardInterrupt: a signal came before, and third-party code swallowed its exception.
        """
        self.raise_if_requested()
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def raise_if_requested(self) -> None:
        """Raise KeyboardInterrupt if a signal came."""
        if self.requested is not None:
            raise KeyboardInterrupt(self.requested)

    def until_requested(
        self, batches: Iterable[T], is_interruptible: Callable[[], bool]
    ) -> Iterator[T]:
        """Yield ``batches`` until a signal comes while one is awaited.

        No step runs then, so the training may stop there: a stalled disk or network would delay the
        stop for ever. ``is_interruptible`` tells whether it may stop before the next batch.
        """
        iterator = iter(batches)
        while True:
            interruptible = is_interruptible()
            self._deferring = not interruptible
            try:
                found = next(iterator)
            except StopIteration:
                return
            except KeyboardInterrupt:
                if self.repeated or not interruptible:
                    raise
                return
            except TrainingError:  # the signal also ended the loader processes
                if self.requested is None or not interruptible:
                    raise
                return
            finally:
                self._deferring = True
            if interruptible and self.requested is not None:  # the exception was swallowed
                return
            yield found


class SaveTimer:
    """Tells when a checkpoint is due by time."""

    def __init__(self, minutes: float) -> None:
        self._interval_s = minutes * 60
        self.restart()

    def restart(self) -> None:
        """Measure from now on: a checkpoint was written."""
        self._began = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the interval has passed; never for an interval of 0."""
        return self._interval_s > 0 and time.monotonic() - self._began >= self._interval_s
