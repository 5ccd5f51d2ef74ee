"""The tables at the end of a run, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from proctor.errors import one_line
from proctor.report.summary import Tally, by_group, by_task, tally
from proctor.runs.journal import EpisodeRow
from proctor.stats.anytime import NOT_WATCHED, Watched


def results_table(rows: Sequence[EpisodeRow], watched: Watched = NOT_WATCHED) -> Table:
    """Return the results per task, per group where there are several, and overall.

    ``watched`` says how a rule that could stop the run watched its rates.
    ``steps`` is the mean number of steps to success.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("group", no_wrap=True)
    table.add_column("task", overflow="fold")
    table.add_column("success [95% interval]", no_wrap=True)
    table.add_column("reward", justify="right", no_wrap=True)
    table.add_column("steps", justify="right", no_wrap=True)
    tasks, groups = by_task(rows), by_group(rows)
    for (suite, _), episodes in tasks.items():
        _add(table, suite, episodes[0].task, tally(episodes, watched.task))
    if 1 < len(groups) < len(tasks):
        table.add_section()
        for suite, episodes in groups.items():
            _add(table, suite, "all", tally(episodes, watched.group))
    if len(tasks) > 1:
        table.add_section()
        _add(table, "all", "all", tally(rows, watched.overall), style="bold")
    return table


def _add(table: Table, group: str, task: str, added: Tally, style: str | None = None) -> None:
    reward = "n/a" if added.avg_sum_reward is None else f"{added.avg_sum_reward:.1f}"
    steps = "n/a" if added.mean_steps_to_success is None else f"{added.mean_steps_to_success:.0f}"
    names = (Text(one_line(name)) for name in (group, task))  # text, never markup
    table.add_row(*names, added.brief, reward, steps, style=style)
