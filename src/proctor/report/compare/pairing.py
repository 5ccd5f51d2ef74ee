"""Choose the episodes of two runs that are compared. Pure functions of loaded runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from proctor.errors import UsageError
from proctor.report.run.run import Run
from proctor.report.run.summary import clean_rows, tally
from proctor.runs.journal import EpisodeRecord
from proctor.stats.independent_units import PlanKey, UnitIndex, may_pair, plan_key, unit_numbers
from proctor.types import EpisodeKey, EpisodeSpec


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
PairKey: TypeAlias = tuple[str, PlanKey]
"""Task and plan key: equal for episodes that are planned to start alike."""


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


def planned_partners(plan: list[EpisodeSpec], run: Run) -> dict[EpisodeKey, EpisodeRecord]:
    """Return the episodes of ``run`` that are planned too, by the key in the plan."""
    label = _labels(plan, run.rows)
    rows = {_pair_key(row, label): row for row in run.rows}
    partners = {spec.key: (spec, rows.get(_pair_key(spec, label))) for spec in plan}
    return {
        key: row
        for key, (spec, row) in partners.items()
        if row is not None and may_pair(row.started, spec.started)
    }


def _pair_key(episode: EpisodeRecord | EpisodeSpec, label: Label) -> PairKey:
    return (label(episode), plan_key(episode))


@dataclass
class PairedSides:
    """The compared episodes of A and B by task, in the same order."""

    tasks: dict[str, tuple[list[EpisodeRecord], list[EpisodeRecord]]] = field(default_factory=dict)
    repeated_a: int = 0
    repeated_b: int = 0
    """Episodes left out because the other run's partner is counted already."""
    different_starts: int = 0
    """Pairs left out: same task, seed and init state, but the episodes start differently."""
    assumed: int = 0
    """Pairs of which only one start was measured."""

    def units(self, task: str) -> list[list[tuple[EpisodeRecord, EpisodeRecord]]]:
        """Return the pairs of a task that both runs completed, by independent unit."""
        pairs = [
            (of_a, of_b)
            for of_a, of_b in zip(*self.tasks[task], strict=True)
            if of_a.outcome.counts and of_b.outcome.counts
        ]
        units: dict[int, list[tuple[EpisodeRecord, EpisodeRecord]]] = {}
        for pair, unit in zip(pairs, unit_numbers(of_a for of_a, _ in pairs), strict=True):
            units.setdefault(unit, []).append(pair)
        return list(units.values())

    @property
    def rows_a(self) -> list[EpisodeRecord]:
        """The episodes of A."""
        return [row for of_a, _ in self.tasks.values() for row in of_a]

    @property
    def rows_b(self) -> list[EpisodeRecord]:
        """The episodes of B."""
        return [row for _, of_b in self.tasks.values() for row in of_b]


def paired_episodes(a: Run, b: Run) -> PairedSides:
    """Pair episodes that start alike: both lists of a task have the same order.

    Perturbed episodes are left out if both runs have clean ones.
    """
    rows_a, rows_b = clean_rows(a.rows), clean_rows(b.rows)
    label = _labels(rows_a, rows_b)
    in_a: dict[PairKey, list[EpisodeRecord]] = {}
    for row in rows_a:
        in_a.setdefault(_pair_key(row, label), []).append(row)
    sides = PairedSides()
    for row in sorted(rows_b, key=lambda row: row.key):
        key = _pair_key(row, label)
        if not (partners := in_a.get(key)):
            sides.repeated_b += key in in_a
            continue
        partner = partners.pop(0)
        if not may_pair(partner.started, row.started):
            sides.different_starts += 1
            continue
        sides.assumed += (partner.start is None) != (row.start is None)
        of_a, of_b = sides.tasks.setdefault(label(row), ([], []))
        of_a.append(partner)
        of_b.append(row)
    keys_b = {_pair_key(row, label) for row in rows_b}
    sides.repeated_a = sum(len(rows) for key, rows in in_a.items() if key in keys_b)
    if not sides.tasks and sides.different_starts:
        raise UsageError(
            f"{a.path} and {b.path} have episodes of the same seeds, but all of them start "
            "differently, so none is a pair; run B with A's --env flags, or compare as separate "
            "samples with --unpaired",
            code="run.different-worlds",
        )
    if not sides.tasks:
        raise UsageError(
            f"{a.path} and {b.path} have no common episode (task, seed, init state); "
            "run B with A's --seed and tasks, or compare as separate samples with --unpaired",
            code="run.no-common-episode",
        )
    return sides


def independent_samples(a: Run, b: Run) -> PairedSides:
    """Take equally many completed episodes of A and B of every common task, each start once.

    Otherwise a run with more episodes of easy tasks would look better than it is.
    """
    rows_a, rows_b = clean_rows(a.rows), clean_rows(b.rows)
    label = _labels(rows_a, rows_b)
    in_a, in_b = _by_label(rows_a, label), _by_label(rows_b, label)
    sides = PairedSides()
    for task in (task for task in in_a if task in in_b):
        new_a, new_b = _new_starts(in_a[task]), _new_starts(in_b[task])
        sides.repeated_a += len(in_a[task]) - len(new_a)
        sides.repeated_b += len(in_b[task]) - len(new_b)
        n = min(tally(new_a).episodes, tally(new_b).episodes)
        sides.tasks[task] = _first_completed(new_a, n), _first_completed(new_b, n)
    if not sides.tasks:
        raise UsageError(f"{a.path} and {b.path} have no common task", code="run.no-common-task")
    return sides


def starts_of(a: Run, b: Run) -> tuple[set[int], set[int]]:
    """Return the independent units of both runs, with one number for equal starts."""
    rows_a, rows_b = clean_rows(a.rows), clean_rows(b.rows)
    label = _labels(rows_a, rows_b)
    index = UnitIndex()

    def nodes(rows: Iterable[EpisodeRecord]) -> list[int]:
        return [index.add(row.started._replace(clean_task=(label(row), 0))) for row in rows]

    of_a, of_b = nodes(rows_a), nodes(rows_b)
    return set(map(index.unit, of_a)), set(map(index.unit, of_b))


def _by_label(rows: Iterable[EpisodeRecord], label: Label) -> dict[str, list[EpisodeRecord]]:
    tasks: dict[str, list[EpisodeRecord]] = {}
    for row in sorted(rows, key=lambda row: row.key):
        tasks.setdefault(label(row), []).append(row)
    return tasks


def _new_starts(rows: list[EpisodeRecord]) -> list[EpisodeRecord]:
    """Leave out episodes of a start that an earlier completed episode has."""
    units: set[int] = set()
    new = []
    for row, unit in zip(rows, unit_numbers(rows), strict=True):
        if unit not in units:
            new.append(row)
        if row.outcome.counts:
            units.add(unit)
    return new


def _first_completed(rows: list[EpisodeRecord], n: int) -> list[EpisodeRecord]:
    """Return the first ``n`` completed episodes and all errored ones."""
    done = [row for row in rows if row.outcome.counts]
    return [row for row in rows if not row.outcome.counts] + done[:n]
