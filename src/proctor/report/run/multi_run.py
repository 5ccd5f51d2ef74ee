"""Several runs in one table: checkpoints of a training, or seeds of one policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from proctor.errors import strip_control_codes
from proctor.report.html.tables import fit_table
from proctor.report.run.summary import Tally, by_group, by_task, clean_rows, tally
from proctor.runs.journal import EpisodeRecord
from proctor.stats.anytime import NOT_MONITORED, MonitoredRates

_MOST_COLUMNS = 6
"""Most columns of tasks or groups; the comparison page shows more."""
POOLED_ROW = "together"


@dataclass(frozen=True)
class NamedRun:
    """A run's name in the table, and its episodes."""

    name: str
    rows: Sequence[EpisodeRecord]
    monitored: MonitoredRates = NOT_MONITORED
    """Which of its rates a stop rule monitors."""


def runs_table(
    runs: Sequence[NamedRun], width: int, *, pools: Sequence[NamedRun] = ()
) -> RenderableType:
    """Return a table with a row per run: its overall rate, and the rates of tasks or groups.

    ``pools``: the pooled episodes of several seeds of a policy, in rows below.
    """
    parts = _parts(sorted((row for run in runs for row in run.rows), key=lambda row: row.key))
    names = [] if parts is None else parts.names
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold")
    table.add_column("success [95% interval]", no_wrap=True)
    for name in names:
        table.add_column(strip_control_codes(name), no_wrap=True)

    def add(run: NamedRun, style: str | None = None) -> None:
        added = [] if parts is None else [parts.of(name, run) for name in names]
        cells = [part.brief.partition(" n=")[0] + part.errors_text for part in added]
        overall = str(tally(clean_rows(run.rows), run.monitored.overall))
        table.add_row(Text(strip_control_codes(run.name)), overall, *cells, style=style)

    for run in runs:
        add(run)
    if pools:
        table.add_section()
    for pool in pools:
        add(pool, style="bold")
    return fit_table(table, width)


@dataclass(frozen=True)
class _Parts:
    """The columns of the table: tasks, or groups. A group may have the name of a task."""

    names: list[str]
    are_groups: bool

    def of(self, name: str, run: NamedRun) -> Tally:
        """Return the tally of one column for a run."""
        if self.are_groups:
            return tally((row for row in run.rows if row.suite == name), run.monitored.group)
        return tally((row for row in run.rows if row.task == name), run.monitored.task)


def _parts(rows: Sequence[EpisodeRecord]) -> _Parts | None:
    """Return tasks if they are few and have distinct names, else groups; None if too many."""
    tasks = [own[0].task for own in by_task(rows).values()]
    for parts in (_Parts(tasks, are_groups=False), _Parts(list(by_group(rows)), are_groups=True)):
        if 1 < len(set(parts.names)) == len(parts.names) <= _MOST_COLUMNS:
            return parts
    return None
