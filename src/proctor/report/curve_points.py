"""Points of a success curve: rates of several runs on the episodes that all of them completed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from proctor.report.run import Run
from proctor.report.summary import tally
from proctor.runs.journal import EpisodeRecord
from proctor.stats.anytime import NOT_MONITORED

Start = tuple[str, str, int, int | None]
"""Suite, task, seed and init state: how an episode starts."""


def curve_points(groups: Sequence[Sequence[Run]]) -> tuple[list[dict[str, Any]], int]:
    """Return a point for each group of runs, and the number of episodes that are left out.

    All points use the same episodes: those that all groups completed. Otherwise a run of easier
    tasks, or an unfinished one, would look better. The runs of a group are pooled.
    """
    rows = [[row for run in group for row in run.rows] for group in groups]
    completed = [{_start(row) for row in of_group if row.outcome.counts} for of_group in rows]
    shared = set.intersection(*completed)
    points = [_point(group, of_group, shared) for group, of_group in zip(groups, rows, strict=True)]
    left_out = sum(map(len, rows)) - sum(point["episodes"] for point in points)
    return points, left_out


def _start(row: EpisodeRecord) -> Start:
    return (row.suite, row.task, row.seed, row.init_state)


def _point(
    group: Sequence[Run], rows: Sequence[EpisodeRecord], shared: Collection[Start]
) -> dict[str, Any]:
    chosen = [row for row in rows if row.outcome.counts and _start(row) in shared]
    monitored = group[0].monitored if len(group) == 1 else NOT_MONITORED
    added = tally(chosen, monitored.overall)
    return {
        "rate": added.rate,
        "interval": None if added.interval is None else list(added.interval),
        "successes": added.successes,
        "episodes": added.episodes,
    }
