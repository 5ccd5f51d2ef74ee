"""What the user sees while a run goes on: live lines, or plain ones now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from proctor.callbacks.base import Callback
from proctor.callbacks.staged_episodes import Keep
from proctor.errors import strip_control_codes, summarize_traceback
from proctor.runs.journal import EpisodeRecord, row_of
from proctor.runs.records import RunProgress
from proctor.stats.anytime import NOT_WATCHED, MonitoredRates
from proctor.stats.counts import Counts
from proctor.types import EpisodeResult, EpisodeSpec

_PLAIN_EVERY_S = 5.0
_MOST_TASKS = 12
"""That are shown at a time while they go on."""


class ProgressLine:
    """One line that is redrawn, or said every few seconds where nothing can be redrawn.

    There it is not said again before it says something else.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=5) if console.is_terminal else None
        if self._live is not None:
            self._live.start()
        self._said_at = time.monotonic()
        self._said = ""

    def show(self, text: str, below: Sequence[str] = ()) -> None:
        """Show ``text`` in place of what was there, now or in a few seconds.

        ``below`` are more lines, for where they can be redrawn.
        """
        if self._live is not None:
            lines = (Text(line, overflow="ellipsis", no_wrap=True) for line in (text, *below))
            self._live.update(Group(*lines))
        elif text != self._said and time.monotonic() - self._said_at >= _PLAIN_EVERY_S:
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


class ProgressCallback(Callback):
    """A line that shows how a run goes; what it says is up to ``line``."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line = ProgressLine(console)
        self._progress = RunProgress(0.0, 0, 0, 0)

    def line(self) -> str:
        """Return the line as text, what matters most first: a narrow terminal cuts the end."""
        raise NotImplementedError

    def below(self) -> list[str]:
        """Return more lines, for a terminal that shows them while the run goes on."""
        return []

    def on_progress(self, progress: RunProgress) -> None:
        """Show how the run goes."""
        self._progress = progress
        self._line.show(self.line(), self.below())

    def close(self) -> None:
        """Leave the last state of the line on the screen."""
        self._line.close(self.line())

    def _name_broken(self, result: EpisodeResult) -> None:
        """Print what broke, where something did."""
        if result.error is not None:
            line = f"{result.outcome.value}: {result.spec}: {summarize_traceback(result.error)}"
            self._console.print(
                strip_control_codes(line), style="yellow", markup=False, soft_wrap=True
            )


@dataclass
class TaskProgress:
    """How far one task of a run is."""

    name: str
    planned: int = 0
    counts: Counts = field(default_factory=Counts)
    ended_at: float = 0.0
    """When its newest episode ended."""

    @property
    def left(self) -> int:
        """Its episodes that have not ended."""
        return self.planned - self.counts.total

    def line(self, name_width: int) -> str:
        """Return how far it is, in one line."""
        name, counts = strip_control_codes(self.name), self.counts
        if len(name) > name_width:
            name = f"{name[: name_width - 1]}…"
        return f"{name:<{name_width}}  {counts.total}/{self.planned}  {counts.rate}"


class Progress(ProgressCallback):
    """Shows episodes done, the rate with its interval, throughput, time left; and of every task."""

    def __init__(
        self,
        plan: Sequence[EpisodeSpec],
        before: Sequence[EpisodeRecord],
        console: Console,
        watched: MonitoredRates = NOT_WATCHED,
    ) -> None:
        """Begin where the episodes ``before`` have ended already."""
        super().__init__(console)
        self._planned = len(plan)
        self._tasks: dict[tuple[str, int], TaskProgress] = {}
        for spec in plan:
            fresh = TaskProgress(spec.task.name, counts=Counts(watch=watched.task))
            self._tasks.setdefault(spec.task.key, fresh).planned += 1
        self._counts = Counts(watch=watched.overall)
        for row in before:
            self._count(row)
        self._done_before = self._counts.total

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Count the episode; one whose simulator broke is named at once."""
        self._count(row_of(result))
        self._name_broken(result)

    def _count(self, row: EpisodeRecord) -> None:
        self._counts.add(row.outcome, row.world_key)
        task = self._tasks[row.suite, row.task_id]
        task.counts.add(row.outcome, row.world_key)
        task.ended_at = max(task.ended_at, row.end_time)

    def below(self) -> list[str]:
        """Return a line for each task that has begun and not ended, newest first, then the rest."""
        if len(self._tasks) == 1:
            return []
        begun = [task for task in self._tasks.values() if task.counts.total]
        begun.sort(key=lambda task: (task.left == 0, -task.ended_at))
        shown = begun[: max(0, min(_MOST_TASKS, self._console.height - 3))]
        name_width = min(self._console.width // 2, max((len(t.name) for t in shown), default=0))
        return [f"  {task.line(name_width)}" for task in shown]

    def line(self) -> str:
        """Return the line as text."""
        counts, progress = self._counts, self._progress
        parts = [f"{counts.total}/{self._planned}", f"success {counts.rate}"]
        if counts.diverged:
            parts.append(f"{counts.diverged} diverged")
        if counts.errors:
            parts.append(f"{counts.errors} error{'s' * (counts.errors != 1)}")
        parts.append(self._time_left())
        parts.append(f"{progress.steps_per_s:,.0f} steps/s")
        if progress.mean_batch is not None:
            parts.append(f"batch {progress.mean_batch:.1f}")
        if len(self._tasks) > 1:
            ended = sum(task.left == 0 for task in self._tasks.values())
            parts.append(f"{ended}/{len(self._tasks)} tasks done")
        return "  ".join(parts)

    def _time_left(self) -> str:
        done = self._counts.total - self._done_before
        return time_left(done, self._planned - self._counts.total, self._progress.elapsed_s)


class VideoProgress(ProgressCallback):
    """Shows how many of the chosen episodes have been filmed."""

    def __init__(self, planned: int, console: Console) -> None:
        super().__init__(console)
        self._planned = planned
        self._ended = 0

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Count the episode; what is to be said of its video is said in the end."""
        self._ended += 1

    def line(self) -> str:
        """Return the line as text."""
        left = time_left(self._ended, self._planned - self._ended, self._progress.elapsed_s)
        return f"filming {self._ended}/{self._planned}  {left}"


class RecordingProgress(ProgressCallback):
    """Shows how many demonstrations there are, and how many episodes were none."""

    def __init__(self, wanted: int, before: int, keep: Keep, console: Console) -> None:
        super().__init__(console)
        self._wanted = wanted
        self._before = self._kept = before
        self._lost = 0
        self._keep = keep

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Count the episode; one whose simulator broke is named at once."""
        kept = self._keep.keeps(result.outcome)
        self._kept += kept
        self._lost += not kept
        self._name_broken(result)

    def line(self) -> str:
        """Return the line as text."""
        done, left = self._kept - self._before, max(0, self._wanted - self._kept)
        parts = [f"recorded {self._kept}/{self._wanted}", f"{self._lost} not kept"]
        parts.append(time_left(done, left, self._progress.elapsed_s))
        parts.append(f"{self._progress.steps_per_s:,.0f} steps/s")
        return "  ".join(parts)


def time_left(done: int, left: int, elapsed_s: float) -> str:
    """Say how long it will take if it goes on like this."""
    if left == 0:
        return f"done in {duration_text(elapsed_s)}"
    return f"{duration_text(elapsed_s / done * left)} left" if done else "starting"


def duration_text(seconds: float) -> str:
    """Return seconds as ``1:02:03`` or ``2:03``."""
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"
