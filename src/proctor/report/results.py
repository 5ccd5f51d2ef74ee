"""Results of a run for the Python API: rates, records, a data frame, CSV and Markdown."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from proctor.errors import UsageError, strip_control_codes
from proctor.report.summary import Tally, by_group, by_task, tally
from proctor.runs.journal import EpisodeRecord, videos_in
from proctor.stats.anytime import NOT_MONITORED, MonitoredRates
from proctor.stats.rates import Interval

_FORMULA = ("=", "+", "-", "@", "\t", "\n")
"""First characters of a cell that spreadsheets take for a formula; they skip white space."""
_COLUMNS = [field.name for field in fields(EpisodeRecord) if field.name != "format"]


@dataclass(frozen=True)
class TaskResult:
    """The tally of one task."""

    suite: str
    task_id: int
    task: str
    tally: Tally

    @property
    def rate(self) -> float | None:
        """The success rate, 0 to 1; None if no episode was completed."""
        return self.tally.rate

    @property
    def interval(self) -> Interval | None:
        """The rate's 95% interval."""
        return self.tally.interval

    def __str__(self) -> str:
        return f"{self.task}: {self.tally}"


@dataclass(frozen=True)
class Results:
    """The episodes of a run, and their tallies."""

    path: Path
    planned: int
    rows: list[EpisodeRecord]
    stopped: str | None = None
    """Why a stop rule ended the run early."""
    monitored: MonitoredRates = NOT_MONITORED
    """Which rates a stop rule monitors."""

    @property
    def episodes(self) -> list[EpisodeRecord]:
        """Every finished episode, as its journal record."""
        return self.rows

    @property
    def tally(self) -> Tally:
        """The tally of all episodes."""
        return tally(self.rows, self.monitored.overall)

    @property
    def per_task(self) -> list[TaskResult]:
        """The tally of each task."""
        return [
            TaskResult(suite, task_id, rows[0].task, tally(rows, self.monitored.task))
            for (suite, task_id), rows in by_task(self.rows).items()
        ]

    @property
    def per_group(self) -> dict[str, Tally]:
        """The tally of each group of tasks."""
        groups = by_group(self.rows)
        return {suite: tally(rows, self.monitored.group) for suite, rows in groups.items()}

    @property
    def complete(self) -> bool:
        """Whether every planned episode has ended."""
        return len(self.rows) == self.planned

    def records(self) -> list[dict[str, Any]]:
        """Return the episodes as plain values: the journal's columns and the path of the video.

        Values that were not measured are None.
        """
        videos = videos_in(self.path)
        return [
            _record(row) | {"video": row.video if row.video in videos else None}
            for row in self.rows
        ]

    def to_pandas(self) -> Any:
        """Return the episodes as a pandas data frame, one row each.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise UsageError(
                "pandas is not installed; run: pip install pandas", code="extra.missing"
            ) from None
        return pandas.DataFrame(self.records(), columns=[*_COLUMNS, "video"])

    def to_csv(self) -> str:
        """Return the episodes as CSV, one line each; values that were not measured are empty."""
        text = io.StringIO()
        writer = csv.DictWriter(text, [*_COLUMNS, "video"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: _csv_cell(value) for name, value in record.items()} for record in self.records()
        )
        return text.getvalue()

    def to_markdown(self) -> str:
        """Return the results as a Markdown table: tasks, then groups, then all episodes."""
        tasks, groups = self.per_task, self.per_group
        lines = [_line("group", "task", "success [95% interval]", "reward", "steps")]
        lines.append(_line("---", "---", "---", "--:", "--:"))
        lines += [_tally_line(one.suite, one.task, one.tally) for one in tasks]
        if 1 < len(groups) < len(tasks):
            lines += [_tally_line(suite, "all", added) for suite, added in groups.items()]
        if len(tasks) != 1:
            lines.append(_tally_line("all", "all", self.tally))
        missing = self.planned - len(self.rows)
        if missing > 0 and self.stopped is None:
            lines += ["", f"{missing} of {self.planned} planned episodes are missing."]
        if self.stopped is not None:
            lines += ["", strip_control_codes(f"Stopped: {self.stopped}.")]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return str(self.tally)


def _csv_cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula: such text gets a leading quote.

    A carriage return becomes a newline: the csv module leaves it unquoted, and it ends a row.
    """
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if text.startswith(_FORMULA) else text


def _record(row: EpisodeRecord) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _COLUMNS} | {"outcome": row.outcome.value}


def _tally_line(group: str, task: str, added: Tally) -> str:
    return _line(
        group,
        task,
        added.brief,
        "n/a" if added.avg_sum_reward is None else f"{added.avg_sum_reward:.1f}",
        "n/a" if added.mean_steps_to_success is None else f"{added.mean_steps_to_success:.0f}",
    )


def _line(*cells: str) -> str:
    """Return a row of a Markdown table, with the cells escaped."""
    shown = (strip_control_codes(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(shown)} |"
