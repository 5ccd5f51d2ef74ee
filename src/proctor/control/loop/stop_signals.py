"""Stop signals of control loops: a loop ends between two ticks, and motors go off in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StopSignals:
    """Handles SIGINT, SIGTERM and SIGHUP inside a ``with`` block.

    A signal raises KeyboardInterrupt, as while a device connects or a person is asked. Inside
    ``deferred`` it only sets ``received``: control loops look at it in every tick, so no exchange
    with a motor is cut in two. A second signal there raises KeyboardInterrupt.

    Under ``nohup`` SIGHUP stays ignored. After the first SIGHUP further ones are ignored, because
    the kernel and the shell may both send one.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        """The first signal, or None."""
        self._is_deferred = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signum is not signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Return a context in which the first signal only sets ``received``."""
        before, self._is_deferred = self._is_deferred, True
        try:
            yield
        finally:
            self._is_deferred = before

    def as_interrupt(self) -> KeyboardInterrupt | None:
        """Return the received signal as an exception with its exit code, or None."""
        return None if self.received is None else KeyboardInterrupt(self.received)

    def _on_signal(self, signum: int, frame: Any) -> None:
        is_first, got = self.received is None, signal.Signals(signum)
        if is_first:
            self.received = got
        if got is signal.SIGHUP:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            self._before.pop(signal.SIGHUP, None)
        if not (self._is_deferred and is_first):
            raise KeyboardInterrupt(got)
