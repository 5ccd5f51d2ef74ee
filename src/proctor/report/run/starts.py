"""Warnings about episodes that are not independent. Pure functions.

Cases: episodes with equal starts, different starts whose episodes have the same digest, and starts
that were not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proctor.report.run.summary import clean_rows
from proctor.runs.journal import EpisodeRecord
from proctor.stats.independent_units import independent_units, unit_numbers
from proctor.types import EpisodeSpec


def planned_repeats(plan: Iterable[EpisodeSpec]) -> str | None:
    """Return a warning if the plan repeats starts."""
    specs = list(plan)
    clean = [spec for spec in specs if spec.task.perturbation is None] or specs
    return _repeats("planned episodes", len(clean), len(independent_units(clean)))


def start_warnings(rows: Sequence[EpisodeRecord]) -> list[str]:
    """Return the warnings about the starts of a run's clean episodes, one line each."""
    done = [row for row in clean_rows(rows) if row.outcome.counts]
    repeats = _repeats("episodes", len(done), len(set(unit_numbers(done))))
    lines = (repeats, _equal_digests(done), _assumed(done))
    return [line for line in lines if line is not None]


def starts_assumed(rows: Iterable[EpisodeRecord]) -> bool:
    """Tell whether no start of the completed episodes was measured, as in older versions."""
    return all(row.start is None for row in rows if row.outcome.counts)


def _assumed(done: Sequence[EpisodeRecord]) -> str | None:
    if not done or not starts_assumed(done):
        return None
    return (
        "starts assumed: they were not measured, so episodes with different seeds count as "
        "independent although some may start alike"
    )


def _repeats(what: str, episodes: int, starts: int) -> str | None:
    if starts == episodes:
        return None
    only = "one start" if starts == 1 else f"{starts} different starts"
    return (
        f"{episodes} {what} begin from {only} only: another episode of a start tells little that "
        "is new, so intervals are as wide as the starts alone make them"
    )


def _equal_digests(rows: Iterable[EpisodeRecord]) -> str | None:
    """Warn if episodes of different starts of a task have the same digest, with an example.

    This may be correct: some environments always start in the same state, and in very small ones
    episodes coincide. The reader of the rate should know in any case.
    """
    rows = list(rows)
    same_digest: dict[
        tuple[str, int, str], dict[int, EpisodeRecord]
    ] = {}  # by task and digest, by unit
    for row, unit in zip(rows, unit_numbers(rows), strict=True):
        if row.digest is not None:
            key = (row.suite, row.task_id, row.digest)
            same_digest.setdefault(key, {}).setdefault(unit, row)
    shared = [units for units in same_digest.values() if len(units) > 1]
    if not shared:
        return None
    first, second = list(shared[0].values())[:2]
    total = sum(map(len, shared))
    digests = f"{len(shared)} digest{'s' * (len(shared) != 1)}"
    return (
        f"{total} different starts have only {digests} between them (start, rewards and end are "
        f"the same), as {first.task} episodes {first.episode_index} and {second.episode_index}: "
        "the environment ignores its seed, or its episodes can hardly differ; where they are "
        "copies, the interval is too narrow"
    )
