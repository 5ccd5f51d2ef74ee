"""What the user sees while a run goes on: one live line, or plain lines without a terminal."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from proctor.errors import last_line, one_line
from proctor.recorders.base import Recorder
from proctor.recorders.takes import Keep
from proctor.runs.records import Pulse
from proctor.stats.counts import Counts
from proctor.stats.rates import rate_text
from proctor.types import EpisodeResult

_PLAIN_EVERY_S = 5.0


class Line:
    """One line that is redrawn, or said every few seconds where nothing can be redrawn."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=5) if console.is_terminal else None
        if self._live is not None:
            self._live.start()
        self._said_at = time.monotonic()
        self._said = ""

    def show(self, text: str) -> None:
        """Show ``text`` in place of what was there, now or in a few seconds."""
        if self._live is not None:
            self._live.update(Text(text, overflow="ellipsis", no_wrap=True))
        elif time.monotonic() - self._said_at >= _PLAIN_EVERY_S:
            self._said_at = time.monotonic()
            self._say(text)

    def close(self, text: str) -> None:
        """Leave ``text`` on the screen."""
        if self._live is not None:
            self.show(text)
            self._live.stop()
        elif text != self._said:
            self._say(text)

    def _say(self, text: str) -> None:
        self._said = text
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveLine(Recorder):
    """A line that shows how a run goes; what it says is up to ``line``."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line = Line(console)
        self._pulse = Pulse(0.0, 0, 0, 0)

    def line(self) -> str:
        """Return the line as text, what matters most first: a narrow terminal cuts the end."""
        raise NotImplementedError

    def pulse(self, pulse: Pulse) -> None:
        """Show how the run goes."""
        self._pulse = pulse
        self._line.show(self.line())

    def close(self) -> None:
        """Leave the last state of the line on the screen."""
        self._line.close(self.line())

    def _name_broken(self, result: EpisodeResult) -> None:
        """Print what broke, where something did."""
        if result.error is not None:
            line = f"{result.outcome.value}: {result.spec}: {last_line(result.error)}"
            self._console.print(one_line(line), style="yellow", markup=False, soft_wrap=True)


class Progress(LiveLine):
    """Shows episodes done, the rate with its interval, throughput, mean batch and time left."""

    def __init__(self, planned: int, counts: Counts, console: Console) -> None:
        super().__init__(console)
        self._planned = planned
        self._counts = counts
        self._done_before = counts.total

    def episode_ended(self, result: EpisodeResult) -> None:
        """Count the episode; one whose simulator broke is named at once."""
        self._counts.add(result.outcome, result.spec.world_key)
        self._name_broken(result)

    def line(self) -> str:
        """Return the line as text."""
        counts, pulse = self._counts, self._pulse
        rate = rate_text(counts.successes, counts.successes + counts.failures, counts.worlds)
        parts = [f"{counts.total}/{self._planned}", f"success {rate}"]
        if counts.diverged:
            parts.append(f"{counts.diverged} diverged")
        if counts.errors:
            parts.append(f"{counts.errors} error{'s' * (counts.errors != 1)}")
        parts.append(self._time_left())
        parts.append(f"{pulse.steps_per_s:,.0f} steps/s")
        if pulse.mean_batch is not None:
            parts.append(f"batch {pulse.mean_batch:.1f}")
        return "  ".join(parts)

    def _time_left(self) -> str:
        done = self._counts.total - self._done_before
        return time_left(done, self._planned - self._counts.total, self._pulse.elapsed_s)


class FilmingProgress(LiveLine):
    """Shows how many of the chosen episodes have been filmed."""

    def __init__(self, planned: int, console: Console) -> None:
        super().__init__(console)
        self._planned = planned
        self._ended = 0

    def episode_ended(self, result: EpisodeResult) -> None:
        """Count the episode; what is to be said of its video is said in the end."""
        self._ended += 1

    def line(self) -> str:
        """Return the line as text."""
        left = time_left(self._ended, self._planned - self._ended, self._pulse.elapsed_s)
        return f"filming {self._ended}/{self._planned}  {left}"


class RecordingProgress(LiveLine):
    """Shows how many demonstrations there are, and how many episodes were none."""

    def __init__(self, wanted: int, before: int, keep: Keep, console: Console) -> None:
        super().__init__(console)
        self._wanted = wanted
        self._before = self._kept = before
        self._lost = 0
        self._keep = keep

    def episode_ended(self, result: EpisodeResult) -> None:
        """Count the episode; one whose simulator broke is named at once."""
        kept = self._keep.keeps(result.outcome)
        self._kept += kept
        self._lost += not kept
        self._name_broken(result)

    def line(self) -> str:
        """Return the line as text."""
        done, left = self._kept - self._before, max(0, self._wanted - self._kept)
        parts = [f"recorded {self._kept}/{self._wanted}", f"{self._lost} not kept"]
        parts.append(time_left(done, left, self._pulse.elapsed_s))
        parts.append(f"{self._pulse.steps_per_s:,.0f} steps/s")
        return "  ".join(parts)


def time_left(done: int, left: int, elapsed_s: float) -> str:
    """Say how long it will take if it goes on like this."""
    if left == 0:
        return f"done in {clock(elapsed_s)}"
    return f"{clock(elapsed_s / done * left)} left" if done else "starting"


def clock(seconds: float) -> str:
    """Return seconds as ``1:02:03`` or ``2:03``."""
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"
