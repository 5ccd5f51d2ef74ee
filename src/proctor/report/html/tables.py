"""Tables of results for a terminal of any width, or a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from proctor.errors import strip_control_codes
from proctor.report.run.summary import (
    Tally,
    all_name,
    by_group,
    by_task,
    clean_rows,
    number_cells,
    number_heads,
    tally,
)
from proctor.runs.journal import EpisodeRecord
from proctor.stats.anytime import NOT_MONITORED, MonitoredRates
from proctor.types import Score

_UNLIMITED_WIDTH = 10_000
"""Columns: wider than any table."""
_MIN_NAME_WIDTH, _MAX_FOLDS = 14, 3
"""Minimum width of a wrapped name in characters, and its maximum number of lines."""
_GAP = 2


def table_console() -> Console:
    """Return a console for tables; piped output has unlimited width."""
    console = Console()
    return console if console.is_terminal else Console(width=_UNLIMITED_WIDTH)


def fit_table(table: Table, width: int, names: int = 1) -> RenderableType:
    """Return ``table``; if it is wider than ``width``, spread each row over several lines.

    The first ``names`` columns name the row; these may be wrapped.
    """
    if _fits(table, width, names):
        return table
    columns = [[_text(cell) for cell in column.cells] for column in table.columns]
    heads = [str(column.header).partition(" [")[0] for column in table.columns]
    heads = [head.replace("\n", " ") for head in heads]
    lines: list[Text] = []
    for index, row in enumerate(table.rows):
        cells = [column[index] for column in columns]
        style = row.style or ""
        name = " / ".join(dict.fromkeys(cells[:names]))
        lines.append(Text(name, style=style, overflow="fold"))
        measured = zip(heads[names:], cells[names:], strict=True)
        parts = [f"{head} {cell}" for head, cell in measured if cell]
        lines += [Text(f"  {line}", style=style) for line in _packed(parts, width - 2)]
    return Group(*lines)


def _fits(table: Table, width: int, names: int) -> bool:
    """Return whether a row fits in one line of ``width`` columns, with its names wrapped."""
    widths = [
        max(
            cell_len(line)
            for cell in (str(column.header), *column.cells)
            for line in _text(cell).split("\n")
        )
        for column in table.columns
    ]
    folded = [min(size, max(_MIN_NAME_WIDTH, -(-size // _MAX_FOLDS))) for size in widths[:names]]
    return sum(folded) + sum(widths[names:]) + _GAP * (len(widths) - 1) <= width


def _text(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def _packed(parts: Sequence[str], width: int) -> Iterator[str]:
    """Yield lines, each with as many parts as fit."""
    line = ""
    for part in parts:
        if line and cell_len(f"{line}  {part}") > width:
            yield line
            line = ""
        line = f"{line}  {part}" if line else part
    if line:
        yield line


def results_table(
    rows: Sequence[EpisodeRecord],
    monitored: MonitoredRates = NOT_MONITORED,
    width: int = _UNLIMITED_WIDTH,
    scores: Sequence[Score] = (),
) -> RenderableType:
    """Return the results per task, per group if there are several, and overall.

    ``monitored``: rates that a stop rule monitors; they get anytime-valid intervals. ``scores``:
    scores of the benchmark, a column each.
    """
    tasks, groups = by_task(rows), by_group(rows)
    grouped = any(suite != episodes[0].task for (suite, _), episodes in tasks.items())
    names = ("group", "task") if grouped else ("task",)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name == "group")
    table.add_column("success [95% interval]", no_wrap=True)
    heads = number_heads(scores)
    for head in heads:
        table.add_column(strip_control_codes(head), justify="right", no_wrap=True)

    def add(of: tuple[str, ...], added: Tally, style: str | None = None) -> None:
        cells = (
            Text(strip_control_codes(name)) for name in of[-len(names) :]
        )  # text, never markup
        table.add_row(*cells, added.brief, *number_cells(added, scores), style=style)

    for (suite, _), episodes in tasks.items():
        add((suite, episodes[0].task), tally(episodes, monitored.task))
    if 1 < len(groups) < len(tasks):
        table.add_section()
        for suite, episodes in groups.items():
            add((suite, "all"), tally(episodes, monitored.group))
    if len(tasks) > 1:
        table.add_section()
        total = tally(clean_rows(rows), monitored.overall)
        add(("all", all_name(rows)), total, style="bold")
    if not _fits(table, width, len(names)):
        for column, head in zip(table.columns[-len(heads) :], heads, strict=True):
            column.header = _folded(strip_control_codes(head))
    return fit_table(table, width, len(names))


def _folded(head: str) -> str:
    """Return a header of several words in two lines: ``steps to`` and ``success``."""
    start, space, end = head.rpartition(" ")
    return f"{start}\n{end}" if space else head
