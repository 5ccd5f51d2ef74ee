"""SIGTERM and SIGHUP as Ctrl-C: a command that is told to end cleans up first."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

_SAME_REQUEST_S = 1.0
"""Signals within this time are one request: ``timeout`` signals a process and its process group,
systemd sends SIGTERM and SIGHUP together, and so may the kernel and a shell."""


@contextlib.contextmanager
def termination_raises() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt inside the block, with the signal.

    Under ``nohup`` SIGHUP stays ignored. In a thread other than the main one nothing changes, since
    Python allows no handlers there. Parts that handle signals themselves do so inside the block.
    """
    asked_at = -_SAME_REQUEST_S

    def interrupt(signum: int, frame: Any) -> None:
        nonlocal asked_at
        is_repeated = time.monotonic() - asked_at < _SAME_REQUEST_S
        asked_at = time.monotonic()
        if not is_repeated:
            raise KeyboardInterrupt(signal.Signals(signum))

    before = {}
    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) is signal.SIG_DFL:
                before[signum] = signal.signal(signum, interrupt)
    try:
        yield
    finally:
        for signum, handler in before.items():
            if signal.getsignal(signum) is interrupt:  # not ignored since a first SIGHUP
                signal.signal(signum, handler)
