"""Ctrl-C that cannot get lost."""

from __future__ import annotations

import signal
import time
from typing import Any

from proctor.recorders.base import Pulse
from proctor.types import EpisodeResult

_LOST_AFTER_S = 0.5


class Interrupts:
    """Turns SIGINT and SIGTERM into KeyboardInterrupt, and again if the first was swallowed.

    Code of others swallows what is raised inside it: numpy's lazy import of ``numpy.random``
    does, and so does any finaliser. A run that goes on after Ctrl-C is interrupted once more.
    """

    def __init__(self) -> None:
        self._asked_at: float | None = None
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._interrupt)

    def _interrupt(self, signum: int, frame: Any) -> None:
        self._asked_at = time.monotonic()
        raise KeyboardInterrupt

    def episode_ended(self, result: EpisodeResult) -> None:
        """Episodes do not matter here."""

    def pulse(self, pulse: Pulse) -> None:
        """Interrupt a run that is still alive long after it was told to stop."""
        if self._asked_at is not None and time.monotonic() - self._asked_at > _LOST_AFTER_S:
            self._asked_at = None
            raise KeyboardInterrupt

    def close(self) -> None:
        """The handlers stay: the report is still being written."""
