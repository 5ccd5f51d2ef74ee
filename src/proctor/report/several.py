"""Several runs in one table: checkpoints of a training, or seeds of one policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from proctor.errors import one_line
from proctor.report.summary import by_group, by_task, tally
from proctor.report.tables import fitted
from proctor.runs.journal import EpisodeRow
from proctor.stats.anytime import NOT_WATCHED, Watched

_MOST_COLUMNS = 6
"""Of tasks or groups beside the rate of all; more are for the comparison's page."""
TOGETHER = "together"


@dataclass(frozen=True)
class NamedRun:
    """A run as it is called among others, and its episodes."""

    name: str
    rows: Sequence[EpisodeRow]
    watched: Watched = NOT_WATCHED
    """How a rule that could stop it watched its rates."""


def runs_table(runs: Sequence[NamedRun], width: int, *, pooled: bool = False) -> RenderableType:
    """Return a row for each run: its rate over all episodes, and for a few tasks or groups each.

    ``pooled``: they are runs of one policy from different seeds, and a last row counts all of them.
    """
    together = [row for run in runs for row in run.rows]
    parts = _parts(together)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold")
    table.add_column("success [95% interval]", no_wrap=True)
    for name in parts:
        table.add_column(one_line(name), no_wrap=True)

    def add(run: NamedRun, style: str | None = None) -> None:
        cells = []
        for part in parts:
            of_part = [row for row in run.rows if part in (row.suite, row.task)]
            cells.append(tally(of_part, run.watched.task).brief.partition(" n=")[0])
        overall = tally(run.rows, run.watched.overall).brief
        table.add_row(Text(one_line(run.name)), overall, *cells, style=style)

    for run in runs:
        add(run)
    if pooled and all(run.watched == NOT_WATCHED for run in runs):  # else no interval holds
        table.add_section()
        add(NamedRun(TOGETHER, together), style="bold")
    return fitted(table, width)


def _parts(rows: Sequence[EpisodeRow]) -> list[str]:
    """Return what has a column: tasks where they are few and of different names, else groups."""
    groups = list(by_group(rows))
    tasks = [row.task for row in {key: own[0] for key, own in by_task(rows).items()}.values()]
    for names in (tasks, groups):
        if 1 < len(set(names)) == len(names) <= _MOST_COLUMNS:
            return names
    return []
