"""What is to be warned of when episodes are not as different as their number says. Pure functions.

Two ways to count one thing twice: episodes that start from the same world, as planned; and worlds
that should differ but whose episodes cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proctor.runs.journal import EpisodeRecord
from proctor.stats.rates import WorldCounts
from proctor.types import EpisodeSpec


def planned_repeats(plan: Iterable[EpisodeSpec]) -> str | None:
    """Say that the plan repeats worlds, if it does."""
    specs = list(plan)
    return _repeats("planned episodes", len(specs), WorldCounts(spec.world_key for spec in specs))


def world_warnings(rows: Sequence[EpisodeRecord]) -> list[str]:
    """Return what must be known of a run's worlds to read its rates: a line each, often none."""
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
    """Say that different worlds of a task came out alike, with an example.

    They may have done so by right: some environments are meant to start and go alike, others are
    so small that episodes coincide. Who reads the rate should know either way.
    """
    alike: dict[tuple[str, int, str], dict[str, EpisodeRecord]] = {}  # by task and digest, by world
    for row in rows:
        if row.digest is not None:
            key = (row.suite, row.task_id, row.digest)
            alike.setdefault(key, {}).setdefault(row.world, row)
    shared = [worlds for worlds in alike.values() if len(worlds) > 1]
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
