"""The tables at the end of a run, for a terminal, a pipe or a narrow screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from proctor.errors import strip_control_codes
from proctor.report.summary import Tally, by_group, by_task, tally
from proctor.runs.journal import EpisodeRecord
from proctor.stats.anytime import NOT_MONITORED, MonitoredRates

_NOT_CUT = 10_000
"""Columns: wider than any table."""
_LEAST_NAME, _MOST_FOLDS = 14, 3
"""Columns that a name needs to be read where it is folded, and into how many lines it may be."""
_GAP = 2


def table_console() -> Console:
    """Return a console for tables; what is piped has no width that a table could be cut to."""
    console = Console()
    return console if console.is_terminal else Console(width=_NOT_CUT)


def fit_table(table: Table, width: int, names: int = 1) -> RenderableType:
    """Return ``table``, or what it says a few lines a row where ``width`` has no room for it.

    Its first ``names`` columns say what a row is of: those may be folded.
    """
    columns = [[_text(cell) for cell in column.cells] for column in table.columns]
    widths = [
        max(cell_len(text) for text in [str(column.header), *cells])
        for column, cells in zip(table.columns, columns, strict=True)
    ]
    folded = [min(size, max(_LEAST_NAME, -(-size // _MOST_FOLDS))) for size in widths[:names]]
    if sum(folded) + sum(widths[names:]) + _GAP * (len(widths) - 1) <= width:
        return table
    heads = [str(column.header).partition(" [")[0] for column in table.columns]
    lines: list[Text] = []
    for place, row in enumerate(table.rows):
        cells = [column[place] for column in columns]
        style = row.style or ""
        name = " / ".join(dict.fromkeys(cells[:names]))
        lines.append(Text(name, style=style, overflow="fold"))
        measured = zip(heads[names:], cells[names:], strict=True)
        said = [f"{head} {cell}" for head, cell in measured if cell]
        lines += [Text(f"  {line}", style=style) for line in _packed(said, width - 2)]
    return Group(*lines)


def _text(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def _packed(parts: Sequence[str], width: int) -> Iterator[str]:
    """Yield lines of as many parts as fit into each."""
    line = ""
    for part in parts:
        if line and cell_len(f"{line}  {part}") > width:
            yield line
            line = ""
        line = f"{line}  {part}" if line else part
    if line:
        yield line


def results_table(
    rows: Sequence[EpisodeRecord], monitored: MonitoredRates = NOT_MONITORED, width: int = _NOT_CUT
) -> RenderableType:
    """Return the results per task, per group where there are several, and overall.

    ``monitored`` says how a rule that could stop the run watched its rates.
    ``steps`` is the mean number of steps to success.
    """
    tasks, groups = by_task(rows), by_group(rows)
    grouped = any(suite != episodes[0].task for (suite, _), episodes in tasks.items())
    names = ("group", "task") if grouped else ("task",)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name == "group")
    table.add_column("success [95% interval]", no_wrap=True)
    table.add_column("reward", justify="right", no_wrap=True)
    table.add_column("steps", justify="right", no_wrap=True)

    def add(of: tuple[str, ...], added: Tally, style: str | None = None) -> None:
        cells = (
            Text(strip_control_codes(name)) for name in of[-len(names) :]
        )  # text, never markup
        table.add_row(*cells, added.brief, *_means(added), style=style)

    for (suite, _), episodes in tasks.items():
        add((suite, episodes[0].task), tally(episodes, monitored.task))
    if 1 < len(groups) < len(tasks):
        table.add_section()
        for suite, episodes in groups.items():
            add((suite, "all"), tally(episodes, monitored.group))
    if len(tasks) > 1:
        table.add_section()
        add(("all", "all"), tally(rows, monitored.overall), style="bold")
    return fit_table(table, width, len(names))


def _means(added: Tally) -> tuple[str, str]:
    reward = "n/a" if added.avg_sum_reward is None else f"{added.avg_sum_reward:.1f}"
    steps = "n/a" if added.mean_steps_to_success is None else f"{added.mean_steps_to_success:.0f}"
    return reward, steps
