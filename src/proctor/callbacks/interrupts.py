"""Ctrl-C and other stop signals, raised again if third-party code swallows them."""

from __future__ import annotations

import signal
import time
from typing import Any

from proctor.callbacks.base import Callback
from proctor.runs.records import RunProgress

_LOST_AFTER_S = 0.5


class Interrupts(Callback):
    """Turns stop signals into KeyboardInterrupt, and raises it again if it was swallowed.

    The handlers stay until the block ends, after the report is written; then the earlier handlers
    are restored.

    SIGHUP means that the terminal is gone (a dropped ssh connection). Under ``nohup`` it is ignored
    and stays ignored. The kernel and the shell may both send it, and the second must not stop the
    report: after the first it is ignored, also after the block.

    Third-party code may swallow the exception: numpy's lazy import of ``numpy.random`` does, and so
    does every finaliser. A run that continues after Ctrl-C is interrupted once more.
    """

    def __init__(self, settle_s: float = 0.0) -> None:
        """Ignore further signals for ``settle_s`` seconds after the first.

        A supervisor may send SIGINT and SIGTERM together. The second would interrupt the shutdown.
        """
        self._settle_s = settle_s
        self._asked_at: float | None = None
        self._asked_by = signal.SIGINT
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signum is not signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    def _interrupt(self, signum: int, frame: Any) -> None:
        if self._asked_at is not None and time.monotonic() < self._asked_at + self._settle_s:
            return
        self._note(signal.Signals(signum))
        raise KeyboardInterrupt(self._asked_by)

    def _note(self, signum: signal.Signals) -> None:
        """Record the signal; ignore further hang-ups."""
        self._asked_at, self._asked_by = time.monotonic(), signum
        if signum is signal.SIGHUP:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            self._before.pop(signal.SIGHUP, None)

    def on_progress(self, progress: RunProgress) -> None:
        """Interrupt a run that continues long after it was asked to stop."""
        if self._asked_at is not None and time.monotonic() - self._asked_at > _LOST_AFTER_S:
            self._asked_at = None
            raise KeyboardInterrupt(self._asked_by)
