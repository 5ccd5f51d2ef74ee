"""Progress on the terminal: lines that are redrawn, or plain lines every few seconds in a log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from proctor.callbacks.base import Callback
from proctor.callbacks.staged_episodes import EpisodeFilter
from proctor.errors import strip_control_codes, summarize_traceback
from proctor.runs.journal import EpisodeRecord, make_record
from proctor.runs.records import RunProgress
from proctor.stats.anytime import NOT_MONITORED, MonitoredRates
from proctor.stats.counts import Counts
from proctor.types import EpisodeResult, EpisodeSpec

_PLAIN_EVERY_S = 5.0
_SO_FAR = "success so far (successes end first)"
_MAX_TASKS_SHOWN = 12
"""Largest number of tasks that are shown at a time."""


class ProgressLine:
    """A line that is redrawn, or printed every few seconds where it cannot be redrawn.

    A printed line is not repeated while its text is the same.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=5) if console.is_terminal else None
        if self._live is not None:
            self._live.start()
        self._printed_at = time.monotonic()
        self._printed = ""

    def show(self, text: str, below: Sequence[str] = ()) -> None:
        """Show ``text`` in place of the earlier text, at once or within a few seconds.

        ``below`` are further lines for terminals that can redraw them.
        """
        if self._live is not None:
            lines = (Text(line, overflow="ellipsis", no_wrap=True) for line in (text, *below))
            self._live.update(Group(*lines))
        elif text != self._printed and time.monotonic() - self._printed_at >= _PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            self._print(text)

    def close(self, text: str) -> None:
        """Leave ``text`` on the screen."""
        if self._live is not None:
            self.show(text)
            self._live.stop()
        elif text != self._printed:
            self._print(text)

    def _print(self, text: str) -> None:
        self._printed = text
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class ProgressCallback(Callback):
    """A callback that shows a run's progress; subclasses define the text in ``line``."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line = ProgressLine(console)
        self._progress = RunProgress(0.0, 0, 0, 0)

    @property
    def done(self) -> int:
        """Number of finished episodes, of all sessions."""
        raise NotImplementedError

    @property
    def total(self) -> int:
        """Number of planned episodes."""
        raise NotImplementedError

    def line(self) -> str:
        """Return the text, most important part first: a narrow terminal cuts the end."""
        raise NotImplementedError

    def below(self) -> list[str]:
        """Return further lines for a terminal that can redraw them."""
        return []

    def on_progress(self, progress: RunProgress) -> None:
        """Show the run's progress."""
        self._progress = progress
        self._line.show(self.line(), self.below())

    def close(self) -> None:
        """Leave the last text on the screen."""
        self._line.close(self.line())

    def _print_error(self, result: EpisodeResult) -> None:
        """Print the error of an episode that has one."""
        if result.error is not None:
            line = f"{result.outcome.value}: {result.spec}: {summarize_traceback(result.error)}"
            self._console.print(
                strip_control_codes(line), style="yellow", markup=False, soft_wrap=True
            )


@dataclass
class TaskProgress:
    """The progress of one task of a run."""

    name: str
    planned: int = 0
    counts: Counts = field(default_factory=Counts)
    ended_at: float = 0.0
    """Time when its latest episode ended."""

    @property
    def left(self) -> int:
        """Number of its episodes that have not ended."""
        return self.planned - self.counts.total

    def line(self, name_width: int) -> str:
        """Return the progress in one line."""
        name, counts = strip_control_codes(self.name), self.counts
        if len(name) > name_width:
            name = f"{name[: name_width - 1]}…"
        return f"{name:<{name_width}}  {counts.total}/{self.planned}  {counts.rate_text}"


class Progress(ProgressCallback):
    """Shows finished episodes, the success rate and its interval, speed, time left and tasks."""

    def __init__(
        self,
        plan: Sequence[EpisodeSpec],
        before: Sequence[EpisodeRecord],
        console: Console,
        monitored: MonitoredRates = NOT_MONITORED,
    ) -> None:
        """Start with the episodes ``before``, which ended in earlier sessions."""
        super().__init__(console)
        self._planned = len(plan)
        self._tasks: dict[tuple[str, int], TaskProgress] = {}
        for spec in plan:
            fresh = TaskProgress(spec.task.name, counts=Counts(anytime=monitored.task))
            self._tasks.setdefault(spec.task.key, fresh).planned += 1
        clean_only = any(spec.task.perturbation is None for spec in plan)
        self._counts = Counts(anytime=monitored.overall, clean_only=clean_only)
        for row in before:
            self._count(row)
        self._done_before = self._counts.total

    @property
    def done(self) -> int:
        """Number of finished episodes, of all sessions."""
        return self._counts.total

    @property
    def total(self) -> int:
        """Number of planned episodes."""
        return self._planned

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Count the episode; print a simulator error at once."""
        self._count(make_record(result))
        self._print_error(result)

    def _count(self, row: EpisodeRecord) -> None:
        self._counts.add(row)
        task = self._tasks[row.suite, row.task_id]
        task.counts.add(row)
        task.ended_at = max(task.ended_at, row.end_time)

    def below(self) -> list[str]:
        """Return one line for each started task, unfinished and latest first."""
        if len(self._tasks) == 1:
            return []
        begun = [task for task in self._tasks.values() if task.counts.total]
        begun.sort(key=lambda task: (task.left == 0, -task.ended_at))
        shown = begun[: max(0, min(_MAX_TASKS_SHOWN, self._console.height - 3))]
        name_width = min(self._console.width // 2, max((len(t.name) for t in shown), default=0))
        return [f"  {task.line(name_width)}" for task in shown]

    def line(self) -> str:
        """Return the line as text."""
        counts, progress = self._counts, self._progress
        what = "success" if counts.total >= self._planned else _SO_FAR
        parts = [f"{counts.total}/{self._planned}", f"{what} {counts.rate_text}"]
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
    """Shows how many of the chosen episodes have a video."""

    def __init__(self, planned: int, console: Console) -> None:
        super().__init__(console)
        self._planned = planned
        self._ended = 0

    @property
    def done(self) -> int:
        """Number of replayed episodes."""
        return self._ended

    @property
    def total(self) -> int:
        """Number of chosen episodes."""
        return self._planned

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Count the episode; errors of videos are reported at the end."""
        self._ended += 1

    def line(self) -> str:
        """Return the line as text."""
        left = time_left(self._ended, self._planned - self._ended, self._progress.elapsed_s)
        return f"filming {self._ended}/{self._planned}  {left}"


@dataclass(frozen=True)
class RecordingTarget:
    """What a recording session aims at, and what earlier sessions recorded."""

    n_tasks: int
    per_task: int
    """Demonstrations to keep per task."""
    before: Mapping[tuple[str, int], int]
    """Demonstrations of each task that earlier sessions recorded."""
    keep: EpisodeFilter


class RecordingProgress(ProgressCallback):
    """Shows how many demonstrations are recorded, and how many of them are in the dataset."""

    def __init__(
        self, target: RecordingTarget, in_dataset: Callable[[], int], console: Console
    ) -> None:
        """Begin with the demonstrations of earlier sessions.

        Args:
            target: the demonstrations to record.
            in_dataset: returns the number of episodes in the dataset. They are appended in the
                order of the plan, so that some finished episodes wait for earlier ones.
            console: the terminal.
        """
        super().__init__(console)
        self._target = target
        self._in_dataset = in_dataset
        self._kept = Counter(target.before)
        self._before = self.done
        self._lost = 0
        self._ended = False

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Count the episode; print a simulator error at once."""
        kept = self._target.keep.keeps(result.outcome)
        self._kept[result.spec.task.key] += kept
        self._lost += not kept
        self._print_error(result)

    @property
    def done(self) -> int:
        """Recorded demonstrations; those beyond a task's number do not get into the dataset."""
        return sum(min(n, self._target.per_task) for n in self._kept.values())

    @property
    def total(self) -> int:
        """Number of demonstrations to record."""
        return self._target.n_tasks * self._target.per_task

    def line(self) -> str:
        """Return the line as text."""
        parts = [f"recorded {self.done}/{self.total}"]
        if not self._ended:  # at the end more are appended, and the command prints the number
            parts[0] += f" ({self._in_dataset()} in the dataset)"
        parts += [f"{self._lost} not kept", self._time_text(self.total - self.done)]
        parts.append(f"{self._progress.steps_per_s:,.0f} steps/s")
        return "  ".join(parts)

    def _time_text(self, left: int) -> str:
        elapsed_s, done = self._progress.elapsed_s, self.done - self._before
        if self._ended and left:
            return f"ended after {duration_text(elapsed_s)}"
        if self._lost and not done:
            return "none kept yet"
        return time_left(done, left, elapsed_s)

    def close(self) -> None:
        """Leave the last text on the screen."""
        self._ended = True
        super().close()


def time_left(done: int, left: int, elapsed_s: float) -> str:
    """Return the time left at the current speed, as text."""
    if left == 0:
        return f"done in {duration_text(elapsed_s)}"
    return f"{duration_text(elapsed_s / done * left)} left" if done else "starting"


def duration_text(seconds: float) -> str:
    """Return seconds as ``1:02:03`` or ``2:03``."""
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"
