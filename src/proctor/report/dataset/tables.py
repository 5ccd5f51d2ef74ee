"""Tables of a dataset for the terminal: overview, features, cameras, tasks and statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table
from rich.text import Text

from proctor.datasets.format.info import DEFAULT_FEATURES
from proctor.errors import strip_control_codes
from proctor.report.dataset.summary import DatasetSummary

_SHOWN_STATS = ("min", "q01", "mean", "std", "q99", "max")
_FEW_STATS = ("min", "mean", "std", "max")
_WIDE = 90
"""Terminal width in columns at which all statistics fit."""
_NARROWEST = 5
_NOTHING = 1e-9
"""Values below this are shown as 0: LeRobot's quantiles are off by this much."""


@dataclass(frozen=True)
class TableSize:
    """Terminal width in columns, and the most rows of a long list (None: all)."""

    width: int
    most_rows: int | None = None


def summary_tables(summary: DatasetSummary, room: TableSize) -> Iterator[Table]:
    """Yield the tables; long lists are cut to ``most_rows`` and the number of further rows."""
    yield _overview(summary)
    yield _features(summary, room)
    if summary.cameras:
        yield _cameras(summary, room)
    yield _tasks(summary, room)
    if summary.stats:
        yield _statistics(summary, room)


def _table(
    room: TableSize, heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> Table:
    """Return a table; if it is too wide, its widest text columns are cut, never numbers."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    cut = [index for index, head in enumerate(heads) if head not in right]
    while sum(widths) + 2 * (len(widths) - 1) > room.width:
        widest = max(cut, key=widths.__getitem__)
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head, width in zip(heads, widths, strict=True):
        table.add_column(
            head, justify="right" if head in right else "left", width=width,
            no_wrap=True, overflow="ellipsis",
        )  # fmt: skip
    for row in rows:
        _add(table, *row)
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(strip_control_codes(cell)) for cell in cells))  # text, never markup


def _overview(summary: DatasetSummary) -> Table:
    info, length = summary.info, summary.episodes.length
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    robot = f", robot {info.robot_type}" if info.robot_type else ""
    _add(table, "dataset", str(summary.root))
    _add(table, "format", f"{info.version}, {info.fps} fps{robot}")
    spread = ""
    if len(length):
        low, middle, high = (int(n) for n in np.percentile(length, [0, 50, 100]))
        spread = f", {low:,} to {high:,} frames each (median {middle:,})"
        if low == high:
            spread = f" of {low:,} frames"
    hours = duration(info.total_frames / info.fps)
    _add(table, "episodes", f"{info.total_episodes:,}{spread}")
    _add(table, "frames", f"{info.total_frames:,} ({hours})")
    sizes = [
        f"{name} {size_text(size)} ({files:,} file{'' if files == 1 else 's'})"
        for name, (files, size) in summary.sizes.items()
        if files
    ]
    _add(table, "on disk", ", ".join(sizes))
    return table


def _features(summary: DatasetSummary, room: TableSize) -> Table:
    rows = []
    for key, entry in summary.info.features.items():
        shown = ", ".join(map(str, _flat(entry.get("names") or [])))
        rows.append((key, entry["dtype"], "x".join(map(str, entry["shape"])), shown))
    return _table(room, ("feature", "dtype", "shape", "names"), rows)


def _flat(names: Any) -> list[Any]:
    if isinstance(names, Mapping):  # older datasets: {"motors": [...]}
        return [name for group in names.values() for name in group]
    return list(names)


def _cameras(summary: DatasetSummary, room: TableSize) -> Table:
    rows = []
    for camera in summary.cameras:
        stored = " ".join(filter(None, (camera.codec, camera.pix_fmt)))
        if camera.files is None or camera.size is None:
            stored, files, size = f"{stored} in the tables", "", ""
        else:
            files, size = f"{camera.files:,}", size_text(camera.size)
        depth = ", depth" if camera.is_depth else ""
        rows.append((camera.key, f"{camera.width}x{camera.height}{depth}", stored, files, size))
    heads = ("camera", "images", "stored as", "files", "on disk")
    return _table(room, heads, rows, right=("files", "on disk"))


def _tasks(summary: DatasetSummary, room: TableSize) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("episodes", justify="right", no_wrap=True)
    table.add_column("task", overflow="fold")
    tasks = summary.episodes_by_task()
    for task, episodes in tasks[: room.most_rows]:
        _add(table, f"{episodes:,}", task)
    if room.most_rows is not None and len(tasks) > room.most_rows:
        _add(table, "", f"and {len(tasks) - room.most_rows:,} more tasks")
    return table


def _statistics(summary: DatasetSummary, room: TableSize) -> Table:
    names = _SHOWN_STATS if room.width >= _WIDE else _FEW_STATS
    rows = list(_stats_rows(summary, names))
    shown = rows[: room.most_rows]
    table = _table(room, ("statistics", "component", *names), shown, right=names)
    if len(rows) > len(shown):
        _add(table, f"and {len(rows) - len(shown):,} more rows")
    return table


def _stats_rows(summary: DatasetSummary, shown: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for key in summary.info.features:
        stats = summary.stats.get(key)
        if stats is None or key in DEFAULT_FEATURES:
            continue
        columns = {name: stats[name].reshape(-1) for name in shown if name in stats}
        size = max((len(column) for column in columns.values()), default=0)
        names = component_names(summary, key, size)
        for index in range(size):
            cells = (_number(columns.get(name), index) for name in shown)
            yield (key if index == 0 else "", names[index], *cells)


def component_names(summary: DatasetSummary, key: str, size: int) -> list[str]:
    """Return the names of a feature's components; indices if the dataset has no names."""
    if key in summary.info.cameras:
        return ["red", "green", "blue"] if size == 3 else [str(i) for i in range(size)]
    names = _flat(summary.info.entry(key).get("names") or [])
    if len(names) == size and size > 1:
        return [str(name) for name in names]
    return [""] if size == 1 else [str(i) for i in range(size)]


def _number(column: npt.NDArray[Any] | None, index: int) -> str:
    if column is None or index >= len(column):
        return "n/a"
    value = float(column[index])
    return "0" if abs(value) < _NOTHING else f"{value:.4g}"


def size_text(size: int) -> str:
    """Return ``1.7 MB`` for 1,700,000 bytes."""
    value = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def duration(seconds: float) -> str:
    """Return ``1 h 2 min``, ``2 min 3 s`` or ``2.8 s``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
