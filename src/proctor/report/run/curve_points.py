"""Points of a success curve: rates of several runs on the episodes that all of them completed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proctor.report.run.run import Run
from proctor.report.run.summary import clean_rows, tally
from proctor.runs.journal import EpisodeRecord
from proctor.stats.anytime import NOT_MONITORED
from proctor.stats.independent_units import plan_key, unit_numbers


def curve_points(groups: Sequence[Sequence[Run]]) -> tuple[list[dict[str, Any]], int]:
    """Return a point for each group of runs, and the number of episodes that are left out.

    All points use the same episodes: those that all groups completed. Otherwise a run of easier
    tasks, or an unfinished one, would look better. The runs of a group are pooled.
    """
    rows = [[row for run in group for row in clean_rows(run.rows)] for group in groups]
    numbers = iter(unit_numbers(row for of_group in rows for row in of_group))
    named = [
        [((row.suite, row.task, plan_key(row), next(numbers)), row) for row in of_group]
        for of_group in rows
    ]
    completed = [{name for name, row in of_group if row.outcome.counts} for of_group in named]
    shared = set.intersection(*completed)
    chosen = [
        [row for name, row in of_group if row.outcome.counts and name in shared]
        for of_group in named
    ]
    points = [_point(group, of_group) for group, of_group in zip(groups, chosen, strict=True)]
    left_out = sum(map(len, rows)) - sum(point["episodes"] for point in points)
    return points, left_out


def _point(group: Sequence[Run], rows: Sequence[EpisodeRecord]) -> dict[str, Any]:
    monitored = group[0].monitored if len(group) == 1 else NOT_MONITORED
    added = tally(rows, monitored.overall)
    return {
        "rate": added.rate,
        "interval": None if added.interval is None else list(added.interval),
        "successes": added.successes,
        "episodes": added.episodes,
    }
