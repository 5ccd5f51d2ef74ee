"""Warnings about episodes that are not independent. Pure functions.

Two cases: episodes that start from the same world by plan, and worlds that should differ but whose
episodes have the same digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proctor.runs.journal import EpisodeRecord
from proctor.stats.rates import WorldCounts
from proctor.types import EpisodeSpec


def planned_repeats(plan: Iterable[EpisodeSpec]) -> str | None:
    """Return a warning if the plan repeats worlds."""
    specs = list(plan)
    return _repeats("planned episodes", len(specs), WorldCounts(spec.world_key for spec in specs))


def world_warnings(rows: Sequence[EpisodeRecord]) -> list[str]:
    """Return the warnings about a run's worlds, one line each."""
    done = [row for row in rows if row.outcome.counts]
    repeats = _repeats("episodes", len(done), WorldCounts(row.world_key for row in done))
    return [line for line in (repeats, _equal_digests(done)) if line is not None]


def _repeats(what: str, episodes: int, worlds: WorldCounts) -> str | None:
    if worlds.distinct == episodes:
        return None
    return (
        f"{episodes} {what} start from {worlds.distinct} different worlds only: another episode of "
        "a world tells little that is new, so intervals are as wide as the worlds alone make them"
    )


def _equal_digests(rows: Iterable[EpisodeRecord]) -> str | None:
    """Warn if episodes of different worlds of a task have the same digest, with an example.

    This may be correct: some environments always start in the same state, and in very small ones
    episodes coincide. The reader of the rate should know in any case.
    """
    same_digest: dict[
        tuple[str, int, str], dict[str, EpisodeRecord]
    ] = {}  # by task and digest, by world
    for row in rows:
        if row.digest is not None:
            key = (row.suite, row.task_id, row.digest)
            same_digest.setdefault(key, {}).setdefault(row.world, row)
    shared = [worlds for worlds in same_digest.values() if len(worlds) > 1]
    if not shared:
        return None
    first, second = list(shared[0].values())[:2]
    total = sum(map(len, shared))
    digests = f"{len(shared)} digest{'s' * (len(shared) != 1)}"
    return (
        f"{total} different worlds have only {digests} between them (start, rewards and end are "
        f"the same), as {first.task} episodes {first.episode_index} and {second.episode_index}: "
        "the environment ignores its seed, or its episodes can hardly differ; where they are "
        "copies, the interval is too narrow"
    )
