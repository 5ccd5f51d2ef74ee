"""Progress for the Python API: passed to a function, or drawn as a bar in a notebook."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from proctor.callbacks.base import Callback
from proctor.callbacks.progress import ProgressCallback
from proctor.errors import UsageError
from proctor.runs.records import RunProgress
from proctor.types import EpisodeResult

_EVERY_S = 0.2
_BAR_WIDTH = 40


@dataclass(frozen=True)
class ProgressUpdate:
    """The progress of an evaluation, a recording or a training."""

    done: int
    """Finished episodes, recorded demonstrations or training steps, of all sessions."""
    total: int
    """Planned number of them."""
    text: str
    """The line that the command prints."""
    rate: float | None
    """How many were done per second in this session; None: none yet."""


ProgressFunction = Callable[[ProgressUpdate], None]
"""Receives updates a few times a second, and once at the end."""
ProgressArgument = bool | ProgressFunction | None
"""``progress=``: None (quiet), True (a line on the terminal, a bar in a notebook) or a function."""


class NotebookBar:
    """A bar and a line of text in a notebook's cell, redrawn in place.

    rich renders the bar as HTML and IPython's display replaces it, so ipywidgets is not needed.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, update: ProgressUpdate) -> None:
        """Draw the bar."""
        bar = Table.grid(padding=(0, 2))
        length = ProgressBar(max(1, update.total), update.done, width=_BAR_WIDTH)
        bar.add_row(length, Text(update.text, no_wrap=True))
        if self._handle is None:
            from IPython.display import display

            self._handle = display(bar, display_id=True)
        else:
            self._handle.update(bar)


class UpdateSender:
    """Passes updates to a function a few times a second; none after the function has failed."""

    def __init__(self, function: ProgressFunction) -> None:
        self._function = function
        self._began, self._first = time.monotonic(), 0
        self._sent_at: float | None = None
        self._failed = False

    def begin(self, done: int) -> None:
        """Measure the rate from now on; ``done`` was done before."""
        self._began, self._first = time.monotonic(), done

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next update."""
        return self._sent_at is None or time.monotonic() - self._sent_at >= _EVERY_S

    @property
    def was_used(self) -> bool:
        """Whether an update was sent."""
        return self._sent_at is not None

    def send(self, done: int, total: int, text: str) -> None:
        """Pass on an update."""
        if self._failed:
            return
        elapsed_s, new = time.monotonic() - self._began, done - self._first
        rate = new / elapsed_s if new > 0 and elapsed_s > 0 else None
        self._sent_at = time.monotonic()
        self._failed = True  # until it returns
        self._function(ProgressUpdate(done, total, text, rate))
        self._failed = False


class ReportedProgress(Callback):
    """Reports the progress of a run."""

    def __init__(self, progress: ProgressCallback, sender: UpdateSender) -> None:
        """Report the text and the counts of ``progress``, which shows nothing itself."""
        self._progress, self._sender = progress, sender
        sender.begin(progress.done)

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Count the episode."""
        self._progress.on_episode_end(result)

    def on_progress(self, progress: RunProgress) -> None:
        """Report the run's progress."""
        self._progress.on_progress(progress)
        if self._sender.is_due:
            self._send()

    def close(self) -> None:
        """Report the state at the end."""
        self._progress.close()
        self._send()

    def _send(self) -> None:
        self._sender.send(self._progress.done, self._progress.total, self._progress.line())


class ProgressDisplay:
    """Where the progress of a call is shown, as its argument ``progress`` says."""

    def __init__(self, progress: ProgressArgument) -> None:
        """Check the argument."""
        is_switch = progress is None or isinstance(progress, bool)
        if not is_switch and not callable(progress):
            raise UsageError(
                f"progress={progress!r}: expected True, None or a function of a ProgressUpdate",
                code="flag.invalid-value",
            )
        in_notebook = progress is True and Console(stderr=True).is_jupyter
        self.on_terminal = progress is True and not in_notebook
        self.sender: UpdateSender | None = None
        """Passes updates to the function or to the notebook's bar; None: there is none."""
        if in_notebook:
            self.sender = UpdateSender(NotebookBar())
        elif callable(progress):
            self.sender = UpdateSender(progress)

    def console(self) -> Console:
        """Return the terminal; without one, a console that prints nothing."""
        if self.on_terminal:
            return Console(stderr=True)
        return Console(quiet=True, force_terminal=False, force_jupyter=False)

    def callbacks(self, make: Callable[[Console], ProgressCallback]) -> list[Callback]:
        """Return the callbacks of a run, whose progress ``make`` shows on a console."""
        if self.sender is not None:
            return [ReportedProgress(make(self.console()), self.sender)]
        return [make(self.console())] if self.on_terminal else []

    def send_if_silent(self, done: int, total: int, text: str) -> None:
        """Send the only update of a call that found nothing left to do."""
        if self.sender is not None and not self.sender.was_used:
            self.sender.begin(done)
            self.sender.send(done, total, text)
