"""Choose the episodes of two runs that are compared. Pure functions of loaded runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from proctor.errors import UsageError
from proctor.report.run import Run
from proctor.report.summary import tally
from proctor.runs.journal import EpisodeRecord
from proctor.types import EpisodeKey, EpisodeSpec, Outcome, default_world


class _TaskOf(NamedTuple):
    """The task of an episode, from a run or from a plan."""

    suite: str
    task_id: int
    name: str


def _task_of(episode: EpisodeRecord | EpisodeSpec) -> _TaskOf:
    if isinstance(episode, EpisodeRecord):
        return _TaskOf(episode.suite, episode.task_id, episode.task)
    return _TaskOf(episode.task.suite, episode.task.task_id, episode.task.name)


Episodes: TypeAlias = Sequence[EpisodeRecord] | Sequence[EpisodeSpec]
Label: TypeAlias = Callable[[EpisodeRecord | EpisodeSpec], str]
TaskWorld: TypeAlias = tuple[str, str]
PairKey: TypeAlias = tuple[str, int, int | None]
"""(task, seed, init state): equal for episodes that start from the same world."""


def _labels(a: Episodes, b: Episodes) -> Label:
    """Return a function that labels the tasks of two runs.

    The label is the task's name if it is unique in each run: a task may be in different suites
    (push-v3 in mt10 and in mt50). If a run has the name in two suites, the suite is part of the
    label.
    """
    ambiguous: set[str] = set()
    for episodes in (a, b):
        tasks = {_task_of(episode) for episode in episodes}
        names = Counter(task.name for task in tasks)
        ambiguous |= {name for name, n in names.items() if n > 1}

    def label(episode: EpisodeRecord | EpisodeSpec) -> str:
        suite, task_id, name = _task_of(episode)
        return f"{suite}/{task_id} {name}" if name in ambiguous else name

    return label


def paired_outcomes(plan: list[EpisodeSpec], run: Run) -> dict[EpisodeKey, Outcome]:
    """Return the outcomes in ``run`` of the planned episodes that it has."""
    label = _labels(plan, run.rows)
    rows = {_pair_key(row, label): row for row in run.rows}
    partners = {spec.key: (spec, rows.get(_pair_key(spec, label))) for spec in plan}
    return {
        key: row.outcome
        for key, (spec, row) in partners.items()
        if row is not None and not _start_unlike(row, spec)
    }


def _pair_key(episode: EpisodeRecord | EpisodeSpec, label: Label) -> PairKey:
    return (label(episode), episode.seed, episode.init_state)


@dataclass
class PairedSides:
    """The compared episodes of A and B by task, each world once."""

    tasks: dict[str, tuple[list[EpisodeRecord], list[EpisodeRecord]]] = field(default_factory=dict)
    repeated_a: int = 0
    repeated_b: int = 0
    """Episodes left out because another episode of the same world is counted."""
    different_worlds: int = 0
    """Pairs left out: same task, seed and init state, but the runs recorded different worlds."""

    @property
    def rows_a(self) -> list[EpisodeRecord]:
        """The episodes of A."""
        return [row for of_a, _ in self.tasks.values() for row in of_a]

    @property
    def rows_b(self) -> list[EpisodeRecord]:
        """The episodes of B."""
        return [row for _, of_b in self.tasks.values() for row in of_b]


def paired_episodes(a: Run, b: Run) -> PairedSides:
    """Pair episodes that start from the same world: both lists of a task have the same order.

    Each world counts once: another pair of it may be a copy of the first.

    Raises:
        UsageError: the runs share no episode.
    """
    label = _labels(a.rows, b.rows)
    in_a: dict[PairKey, list[EpisodeRecord]] = {}
    for row in a.rows:
        in_a.setdefault(_pair_key(row, label), []).append(row)
    sides, worlds, paired = PairedSides(), set(), set()
    for row in sorted(b.rows, key=lambda row: row.key):
        key = _pair_key(row, label)
        if key in paired:  # of pooled runs whose seeds overlap
            sides.repeated_b += 1
            continue
        partner, *others = in_a.get(key, [None])
        if partner is None:
            continue
        paired.add(key)
        sides.repeated_a += len(others)
        if _start_unlike(partner, row):
            sides.different_worlds += 1
            continue
        world = (label(row), row.world)
        if world in worlds:
            sides.repeated_a += 1
            sides.repeated_b += 1
            continue
        if row.outcome.counts and partner.outcome.counts:
            worlds.add(world)
        of_a, of_b = sides.tasks.setdefault(label(row), ([], []))
        of_a.append(partner)
        of_b.append(row)
    if not sides.tasks:
        raise UsageError(
            f"{a.path} and {b.path} have no common episode (task, seed, init state); "
            "run B with A's --seed and tasks, or compare as separate samples with --unpaired",
            code="run.no-common-episode",
        )
    return sides


def _start_unlike(a: EpisodeRecord, b: EpisodeRecord | EpisodeSpec) -> bool:
    """Tell whether two episodes of one seed start from different worlds, if both runs record it."""
    default = default_world(a.seed, a.init_state)  # of journals that do not record the world
    return a.world != b.world and default not in (a.world, b.world)


def independent_samples(a: Run, b: Run) -> PairedSides:
    """Take equally many completed episodes of A and B of every common task, each world once.

    Otherwise a run with more episodes of easy tasks would look better than it is.

    Raises:
        UsageError: the runs share no task.
    """
    label = _labels(a.rows, b.rows)
    in_a, in_b = _by_label(a.rows, label), _by_label(b.rows, label)
    sides = PairedSides()
    for task in (task for task in in_a if task in in_b):
        new_a, new_b = _new_worlds(in_a[task]), _new_worlds(in_b[task])
        sides.repeated_a += len(in_a[task]) - len(new_a)
        sides.repeated_b += len(in_b[task]) - len(new_b)
        n = min(tally(new_a).episodes, tally(new_b).episodes)
        sides.tasks[task] = _first_completed(new_a, n), _first_completed(new_b, n)
    if not sides.tasks:
        raise UsageError(f"{a.path} and {b.path} have no common task", code="run.no-common-task")
    return sides


def worlds_of(a: Run, b: Run) -> tuple[set[TaskWorld], set[TaskWorld]]:
    """Return the worlds of both runs, by task label."""
    label = _labels(a.rows, b.rows)
    of_a, of_b = ({(label(row), row.world) for row in run.rows} for run in (a, b))
    return of_a, of_b


def _by_label(rows: Iterable[EpisodeRecord], label: Label) -> dict[str, list[EpisodeRecord]]:
    tasks: dict[str, list[EpisodeRecord]] = {}
    for row in sorted(rows, key=lambda row: row.key):
        tasks.setdefault(label(row), []).append(row)
    return tasks


def _new_worlds(rows: list[EpisodeRecord]) -> list[EpisodeRecord]:
    """Leave out episodes of a world that an earlier completed episode started from."""
    worlds: set[str] = set()
    new = []
    for row in rows:
        if row.world not in worlds:
            new.append(row)
        if row.outcome.counts:
            worlds.add(row.world)
    return new


def _first_completed(rows: list[EpisodeRecord], n: int) -> list[EpisodeRecord]:
    """Return the first ``n`` completed episodes and all errored ones."""
    done = [row for row in rows if row.outcome.counts]
    return [row for row in rows if not row.outcome.counts] + done[:n]
