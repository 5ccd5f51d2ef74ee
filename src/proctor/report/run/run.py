"""A run as its folder has it, and the loader that every report, page and comparison uses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from proctor.errors import UsageError
from proctor.report.run.history import history_of
from proctor.report.run.results import Results
from proctor.report.run.stopped import interruption_reason, stop_reason
from proctor.runs.folder import RunFolder, RunRecord
from proctor.runs.journal import read_journal, videos_in, with_clean_tasks
from proctor.runs.labels import read_labels
from proctor.runs.records import RunProgress
from proctor.runs.sessions import read_session_totals
from proctor.runs.videos import read_video_warnings
from proctor.system.locks import is_locked
from proctor.types import EpisodeKey, Outcome


@dataclass(frozen=True, repr=False)
class Run(Results):
    """A run folder, finished or not: the record, the episodes, and details read on first use."""

    record: RunRecord = field(kw_only=True)
    """The content of ``run.json``: settings, protocol, versions, machine."""
    damaged: list[int] = field(default_factory=list, kw_only=True)
    """Numbers of the journal lines that cannot be decoded."""
    running: bool = field(default=False, kw_only=True)
    """Whether a process was working on the run when it was loaded."""

    @property
    def config(self) -> dict[str, Any]:
        """All settings, as resolved."""
        return self.record.resolved

    @property
    def fingerprint(self) -> str:
        """The hash of everything that defines the episodes."""
        return self.record.fingerprint

    @property
    def unit(self) -> str:
        """What the run counts: demonstrations, or episodes."""
        return "demonstrations" if self.record.is_recording else "episodes"

    @cached_property
    def n_done(self) -> int:
        """Finished episodes; of a recording, the demonstrations that it wants and has."""
        record = self.record
        if not record.is_recording:
            return len(self.rows)
        keeps_all = record.resolved["record"].get("keep") == "all"
        kept = Counter(
            row.key[:2]
            for row in self.rows
            if row.outcome is Outcome.SUCCESS or (keeps_all and row.outcome.is_complete)
        )
        if record.tasks is None:
            return kept.total()
        return sum(min(kept[task.suite, task.task_id], task.episodes) for task in record.tasks)

    @cached_property
    def interrupted(self) -> str | None:
        """What ended the last session early, if that session could still write it down."""
        return interruption_reason(self.path, len(self.record.sessions))

    @cached_property
    def video_keys(self) -> frozenset[EpisodeKey]:
        """The episodes that have a video."""
        videos = videos_in(self.path)
        return frozenset(row.key for row in self.rows if row.video in videos)

    @cached_property
    def video_warnings(self) -> list[str]:
        """Warnings about the videos."""
        return list(read_video_warnings(self.path).values())

    @cached_property
    def labels(self) -> dict[EpisodeKey, list[str]]:
        """The labels that a person gave to episodes on the page."""
        return read_labels(self.path)

    @cached_property
    def session_totals(self) -> RunProgress:
        """Time, steps and policy calls of all sessions."""
        return read_session_totals(self.path)

    def require_rate(self) -> Self:
        """Return the run if it has a success rate, so that it can be compared."""
        if not self.tally.episodes:
            raise UsageError(
                f"{self.path} has no finished episode: its success rate is n/a", code="run.empty"
            )
        if not self.tally.judged:
            raise UsageError(
                f"{self.path} has rewards only (--env.success=none): no rate can be compared",
                code="run.without-rate",
            )
        return self


def load_run(folder: str | Path) -> Run:
    """Read a run folder, of a finished, interrupted or active run.

    Args:
        folder: the run folder (``--output_dir`` of the run).
    """
    path = Path(folder).expanduser()
    running = is_locked(path)  # before the journal: a run that ends meanwhile is complete there
    record = RunFolder(path).read()
    if record is None:
        raise UsageError(f"{path} is not a run folder (it has no run.json)", code="run.not-found")
    journal = read_journal(path)
    planned = record.planned_episodes
    return Run(
        path=path,
        planned=len(journal.rows) if planned is None else planned,
        rows=sorted(with_clean_tasks(journal.rows, record.tasks or ()), key=lambda row: row.key),
        stopped=stop_reason(path, record.resolved),
        history=history_of(record),
        scores=tuple(record.scores),
        warnings=tuple(record.warnings),
        tasks=tuple(record.tasks or ()),
        record=record,
        damaged=journal.damaged,
        running=running,
    )
