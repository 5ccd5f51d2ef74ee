"""Results of a run for the Python API: rates, records, a data frame, CSV and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from proctor.errors import strip_control_codes
from proctor.report.robustness.drops import Robustness, make_robustness
from proctor.report.robustness.sensitivity import Sensitivity, make_sensitivity
from proctor.report.robustness.table import HEADS, robustness_lines, table_rows
from proctor.report.run.contamination import Contamination, contamination_of
from proctor.report.run.history import History
from proctor.report.run.summary import (
    Tally,
    all_name,
    by_group,
    by_task,
    clean_rows,
    headline_of,
    number_cells,
    number_heads,
    pass_rates,
    pass_text,
    score_column,
    suite_text,
    tally,
)
from proctor.runs.journal import EpisodeRecord, videos_in
from proctor.runs.labels import read_labels
from proctor.runs.records import PlannedTask
from proctor.stats.anytime import MonitoredRates
from proctor.stats.rates import Interval
from proctor.system.platform.optional import LOAD_ERRORS, import_failure
from proctor.types import Score

_FORMULA = ("=", "+", "-", "@", "\t", "\n")
"""First characters of a cell that spreadsheets take for a formula; they skip white space."""
_COLUMNS = [one.name for one in fields(EpisodeRecord) if one.name not in ("format", "scores")]
_ADDED_COLUMNS = ("video", "labels")
"""The path of the video in the run folder, and the labels that a person gave."""


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
    history: History = field(default_factory=History)
    """How the run came to its number of episodes."""
    scores: tuple[Score, ...] = ()
    """The benchmark's scores, which tables show beside success rate and reward."""
    warnings: tuple[str, ...] = ()
    """Warnings of policy and benchmark about what the results mean."""
    tasks: tuple[PlannedTask, ...] = ()
    """The planned tasks; empty for folders of older versions."""

    @property
    def monitored(self) -> MonitoredRates:
        """Which rates need an anytime-valid interval."""
        return self.history.monitored

    @cached_property
    def robustness(self) -> Robustness | None:
        """Perturbed episodes against their clean counterparts; None if no task is perturbed."""
        return make_robustness(self.tasks, self.rows)

    @cached_property
    def contamination(self) -> Contamination | None:
        """Which evaluated starts trained the policy; None: no training made it."""
        return contamination_of(self.path, self.rows, self.monitored.overall)

    @cached_property
    def sensitivity(self) -> Sensitivity | None:
        """Which perturbation explains failures; None without pairs."""
        return None if self.robustness is None else make_sensitivity(self.robustness)

    @property
    def episodes(self) -> list[EpisodeRecord]:
        """Every finished episode, as its journal record."""
        return self.rows

    @cached_property
    def tally(self) -> Tally:
        """The tally of the clean episodes; of all, if every episode is perturbed."""
        return tally(clean_rows(self.rows), self.monitored.overall)

    @property
    def headline(self) -> str:
        """What ``tally`` is about: "success", or which of two kinds of episodes."""
        return headline_of(self.rows)

    @property
    def n_errors(self) -> int:
        """Episodes that ended with an error of the simulator or the system, perturbed ones too."""
        return sum(not row.outcome.counts for row in self.rows)

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
        """Return the episodes as plain values: the journal's columns, the video and the labels.

        Values that were not measured are None.
        """
        videos, labels = videos_in(self.path), read_labels(self.path)
        return [
            _record(row, self._score_names)
            | {
                "video": row.video if row.video in videos else None,
                "labels": "; ".join(labels[row.key]) if row.key in labels else None,
            }
            for row in self.rows
        ]

    @property
    def _score_names(self) -> list[str]:
        return sorted({name for row in self.rows for name in row.scores or ()})

    @property
    def _columns(self) -> list[str]:
        """The columns of ``records``: a score has one if an episode has it."""
        return [*_COLUMNS, *map(score_column, self._score_names), *_ADDED_COLUMNS]

    def to_pandas(self) -> Any:
        """Return the episodes as a pandas data frame, one row each."""
        try:
            import pandas
        except LOAD_ERRORS as error:
            raise import_failure(error, "pandas", "pandas") from None
        return pandas.DataFrame(self.records(), columns=self._columns)

    def to_csv(self) -> str:
        """Return the episodes as CSV, one line each; values that were not measured are empty."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: _csv_cell(value) for name, value in record.items()} for record in self.records()
        )
        return text.getvalue()

    def to_markdown(self, *, history: bool = True) -> str:
        """Return the results as a Markdown table: tasks, then groups, then all episodes.

        ``history``: say how the run came to its number of episodes, if it was not fixed before.
        """
        tasks, groups = self.per_task, self.per_group
        heads = number_heads(self.scores)
        lines = [_line("group", "task", "success [95% interval]", *heads)]
        lines.append(_line("---", "---", "---", *("--:" for _ in heads)))
        add = partial(_tally_line, self.scores)
        lines += [add(one.suite, one.task, one.tally) for one in tasks]
        if 1 < len(groups) < len(tasks):
            lines += [add(suite, "all", added) for suite, added in groups.items()]
        if len(tasks) != 1:
            lines.append(add("all", all_name(self.rows), self.tally))
        if (suite := suite_text(self.tally)) is not None:
            lines += ["", f"{suite[0].upper()}{suite[1:]}."]
        if (repeated := pass_text(pass_rates(self.rows))) is not None:
            lines += ["", f"{repeated}."]
        if self.contamination is not None:
            told = self.contamination.text
            lines += ["", f"{told[0].upper()}{_plain(told[1:])}."]
        lines += self._robustness_markdown()
        missing = self.planned - len(self.rows)
        if missing > 0 and self.stopped is None:
            lines += ["", f"{missing} of {self.planned} planned episodes are missing."]
        if self.stopped is not None:
            lines += ["", strip_control_codes(f"Stopped: {self.stopped}.")]
        if history and self.history.fixed is not True:
            lines += ["", f"{self.history.text[0].upper()}{_plain(self.history.text[1:])}."]
        lines += [line for text in self.warnings for line in ("", f"Warning: {_plain(text)}.")]
        return "\n".join(lines) + "\n"

    def _robustness_markdown(self) -> list[str]:
        if self.robustness is None:
            return []
        lines = ["", _line(*HEADS), _line("---", *("--:" for _ in HEADS[1:]))]
        lines += [_line(*cells) for cells, _ in table_rows(self.robustness, self.sensitivity)]
        for line in robustness_lines(self.robustness):
            lines += ["", f"{line[0].upper()}{_plain(line[1:])}."]
        return lines

    def __str__(self) -> str:
        return str(self.tally)

    def __repr__(self) -> str:
        ended = "" if self.complete else f", {len(self.rows)} of {self.planned} episodes"
        return f"{type(self).__name__}({self}{ended}, path={str(self.path)!r})"


def _csv_cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula: such text gets a leading quote.

    A carriage return becomes a newline: the csv module leaves it unquoted, and it ends a row.
    """
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if text.startswith(_FORMULA) else text


def _record(row: EpisodeRecord, scores: Sequence[str]) -> dict[str, Any]:
    plain = {name: getattr(row, name) for name in _COLUMNS} | {"outcome": row.outcome.value}
    return plain | {score_column(name): (row.scores or {}).get(name) for name in scores}


def _tally_line(scores: Sequence[Score], group: str, task: str, added: Tally) -> str:
    return _line(group, task, added.brief, *number_cells(added, scores))


def _plain(text: str) -> str:
    return strip_control_codes(text).replace("<", "&lt;")


def _line(*cells: str) -> str:
    """Return a row of a Markdown table, with the cells escaped."""
    shown = (strip_control_codes(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(shown)} |"
