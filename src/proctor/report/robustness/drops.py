"""Robustness: perturbed episodes against their clean counterparts. Pure functions of a run.

A pair is a perturbed episode and the clean episode of the same task, seed and init state. Pairs
with an error or without a counterpart are left out, counted and named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, TypeAlias

from proctor.runs.journal import EpisodeRecord
from proctor.runs.records import PlannedTask
from proctor.stats.differences import Paired, difference_interval, effective_pairs, p_value
from proctor.stats.independent_units import UnitCounts, plan_key, unit_numbers
from proctor.stats.mean_changes import mean_change_interval
from proctor.stats.rates import Interval, clustered_effective_n, holm
from proctor.types import Outcome, Perturbation

CellKey: TypeAlias = tuple[str, int | None]
"""(dimension, level)."""
NO_CLEAN = "no clean episode with its seed and init state"
CLEAN_ERROR, PERTURBED_ERROR = "error in the clean episode", "error in the perturbed episode"


@dataclass(frozen=True)
class EpisodePair:
    """A perturbed episode and its clean counterpart, both completed."""

    perturbation: Perturbation
    clean: EpisodeRecord
    perturbed: EpisodeRecord

    @property
    def cell(self) -> CellKey:
        """The cell that the pair belongs to."""
        return self.perturbation.dimension, self.perturbation.level

    @property
    def solved(self) -> tuple[bool, bool]:
        """Whether the perturbed and the clean episode succeeded."""
        return self.perturbed.outcome is Outcome.SUCCESS, self.clean.outcome is Outcome.SUCCESS

    @property
    def lost(self) -> bool:
        """Whether the task was solved without the perturbation only."""
        return self.loss == 1

    @property
    def loss(self) -> int:
        """1 if only the clean episode succeeded, -1 if only the perturbed one, else 0."""
        perturbed, clean = self.solved
        return int(clean) - int(perturbed)


@dataclass(frozen=True)
class MissingPair:
    """A perturbed episode that ended, but is in no pair."""

    cell: CellKey
    perturbed: EpisodeRecord
    reason: str


@dataclass(frozen=True)
class ScoreChange:
    """A score of the benchmark in perturbed episodes against the clean ones, over the pairs."""

    name: str
    pairs: int
    """Pairs of which both episodes have the score."""
    clean: float
    perturbed: float
    interval: Interval | None
    """95% interval of perturbed minus clean; None if the variation is unknown."""

    @property
    def change(self) -> float:
        """Mean of the perturbed episodes minus mean of the clean ones."""
        return self.perturbed - self.clean


@dataclass(frozen=True)
class Drop:
    """Clean rate minus perturbed rate, over the pairs of a cell, a dimension or all."""

    dimension: str | None
    """None: all dimensions."""
    level: int | None
    """None: all levels, or a dimension without levels."""
    tasks: int
    """Number of clean tasks."""
    counts: Paired
    """The pairs. A is the perturbed episode, B the clean one."""
    effective: Paired
    """Counts of as many independent pairs; every start weighs the same."""
    units: UnitCounts
    """Independent units of the pairs, with the successes of the clean episodes."""
    effective_perturbed: float
    """Effective number of perturbed episodes, by how alike those of one start end."""
    missing: int
    """Episodes that ended without a pair."""
    unfinished: int
    """Planned episodes that have not ended."""
    p_value: float | None = None
    """Of "the rates are equal"; None for totals and without pairs."""
    p_holm: float | None = None
    """Holm-corrected over the cells."""
    scores: tuple[ScoreChange, ...] = ()
    """The benchmark's scores, by name."""

    @property
    def name(self) -> str:
        """The cell as text: ``camera 2``, ``camera`` or ``all``."""
        dimension = self.dimension or "all"
        return dimension if self.level is None else f"{dimension} {self.level}"

    @property
    def clean(self) -> float | None:
        """The success rate of the clean episodes of the pairs."""
        counts = self.effective
        return (counts.both + counts.only_b) / counts.n if counts.n else None

    @property
    def perturbed(self) -> float | None:
        """The success rate of the perturbed episodes of the pairs."""
        counts = self.effective
        return (counts.both + counts.only_a) / counts.n if counts.n else None

    @property
    def drop(self) -> float | None:
        """The clean rate minus the perturbed rate; positive if the perturbation costs successes."""
        return self.effective.difference

    @cached_property
    def interval(self) -> Interval | None:
        """The drop's 95% interval; it excludes 0 exactly if ``p_value`` is at most 5%."""
        return difference_interval(self.effective)


@dataclass(frozen=True)
class Robustness:
    """The drops of a run whose tasks are perturbed."""

    cells: list[Drop]
    dimensions: list[Drop]
    all: Drop
    pairs: list[EpisodePair]
    missing: list[MissingPair]

    def of(self, dimension: str) -> list[Drop]:
        """Return the cells of a dimension."""
        return [cell for cell in self.cells if cell.dimension == dimension]

    @property
    def missing_text(self) -> str | None:
        """What is left out, by cell and reason; None if nothing is."""
        reasons = Counter((name_of(one.cell), one.reason) for one in self.missing)
        parts = [f"{cell}: {n} ({reason})" for (cell, reason), n in reasons.items()]
        parts += [
            f"{cell.name}: {cell.unfinished} not run" for cell in self.cells if cell.unfinished
        ]
        return f"left out, no pair: {'; '.join(parts)}" if parts else None


def name_of(cell: CellKey) -> str:
    """Return a cell as text: ``camera 2``."""
    dimension, level = cell
    return dimension if level is None else f"{dimension} {level}"


def make_robustness(
    tasks: Sequence[PlannedTask], rows: Sequence[EpisodeRecord]
) -> Robustness | None:
    """Pair the episodes of a run; None if no task is perturbed or success is not defined."""
    perturbed = {
        (task.suite, task.task_id): task.perturbation
        for task in tasks
        if task.perturbation is not None
    }
    if not perturbed or any(row.outcome is Outcome.ENDED for row in rows):
        return None
    pairs, missing = pair_with_clean(perturbed, rows)
    cells = _cells(perturbed.values())
    ended = Counter(_cell(perturbed[row.key[:2]]) for row in rows if row.key[:2] in perturbed)
    planned: Counter[CellKey] = Counter()
    for task in tasks:
        if task.perturbation is not None:
            planned[_cell(task.perturbation)] += task.episodes

    def drop(of: list[CellKey], dimension: str | None, level: int | None) -> Drop:
        chosen = set(of)
        inside = [pair for pair in pairs if pair.cell in chosen]
        return Drop(
            dimension=dimension,
            level=level,
            tasks=len({pair.perturbation.clean_key for pair in inside}),
            counts=count_pairs(inside),
            effective=effective_pairs(by_unit(inside)),
            units=UnitCounts((pair.clean, pair.solved[1]) for pair in inside),
            effective_perturbed=clustered_effective_n(
                UnitCounts((pair.clean, pair.solved[0]) for pair in inside).clusters
            ),
            missing=sum(one.cell in chosen for one in missing),
            unfinished=sum(max(0, planned[cell] - ended[cell]) for cell in of),
            scores=tuple(_score_changes(inside)),
        )

    found = [drop([cell], *cell) for cell in cells]
    found = [replace(one, p_value=p_value(one.effective)) if one.counts.n else one for one in found]
    dimensions = list(dict.fromkeys(dimension for dimension, _ in cells))
    return Robustness(
        cells=_corrected(found),
        dimensions=[drop([c for c in cells if c[0] == name], name, None) for name in dimensions],
        all=drop(cells, None, None),
        pairs=pairs,
        missing=missing,
    )


def pair_with_clean(
    perturbed: Mapping[tuple[str, int], Perturbation], rows: Iterable[EpisodeRecord]
) -> tuple[list[EpisodePair], list[MissingPair]]:
    """Return the pairs, and the perturbed episodes that have none.

    If several episodes of a task share seed and init state, the first pairs with the first.
    """
    clean: dict[tuple[Any, ...], EpisodeRecord] = {}
    order: Counter[tuple[Any, ...]] = Counter()
    ordered = sorted(rows, key=lambda row: row.key)

    def start(task: tuple[str, int], owner: tuple[str, int], row: EpisodeRecord) -> tuple[Any, ...]:
        place = order[owner, plan_key(row)]
        order[owner, plan_key(row)] += 1
        return (*task, plan_key(row), place)

    for row in ordered:
        if (task := row.key[:2]) not in perturbed:
            clean[start(task, task, row)] = row
    pairs, missing = [], []
    for row in ordered:
        if (change := perturbed.get(row.key[:2])) is None:
            continue
        partner = clean.get(start(change.clean_key, row.key[:2], row))
        if reason := _why_no_pair(partner, row):
            missing.append(MissingPair(_cell(change), row, reason))
        else:
            assert partner is not None
            pairs.append(EpisodePair(change, partner, row))
    return pairs, missing


def _why_no_pair(clean: EpisodeRecord | None, perturbed: EpisodeRecord) -> str | None:
    if not perturbed.outcome.counts:
        return PERTURBED_ERROR
    if clean is None:
        return NO_CLEAN
    return None if clean.outcome.counts else CLEAN_ERROR


def count_pairs(pairs: Iterable[EpisodePair]) -> Paired:
    """Count pairs by which of the two episodes succeeded; A is the perturbed one."""
    solved = Counter(pair.solved for pair in pairs)
    return Paired(
        both=solved[True, True],
        only_a=solved[True, False],
        only_b=solved[False, True],
        neither=solved[False, False],
    )


def _score_changes(pairs: Sequence[EpisodePair]) -> Iterator[ScoreChange]:
    """Yield the change of every score that both episodes of a pair have."""
    for name in sorted({name for pair in pairs for name in pair.perturbed.scores or ()}):
        known = [
            (pair, (pair.clean.scores or {})[name], (pair.perturbed.scores or {})[name])
            for pair in pairs
            if name in (pair.clean.scores or ()) and name in (pair.perturbed.scores or ())
        ]
        if known:
            changes = [perturbed - clean for _, clean, perturbed in known]
            yield ScoreChange(
                name=name,
                pairs=len(known),
                clean=fmean(clean for _, clean, _ in known),
                perturbed=fmean(perturbed for _, _, perturbed in known),
                interval=mean_change_interval(
                    changes, unit_numbers(pair.clean for pair, *_ in known)
                ),
            )


def _cell(change: Perturbation) -> CellKey:
    return change.dimension, change.level


def _cells(changes: Iterable[Perturbation]) -> list[CellKey]:
    """Return the cells: dimensions in the order of the plan, levels from the weakest."""
    cells = list(dict.fromkeys(_cell(change) for change in changes))
    place = {
        dimension: number for number, dimension in enumerate(dict.fromkeys(d for d, _ in cells))
    }
    return sorted(cells, key=lambda cell: (place[cell[0]], -1 if cell[1] is None else cell[1]))


def by_unit(pairs: Sequence[EpisodePair]) -> list[list[tuple[bool, bool]]]:
    """Return which episodes of each pair succeeded, by independent unit."""
    units: dict[int, list[tuple[bool, bool]]] = {}
    for pair, unit in zip(pairs, unit_numbers(pair.clean for pair in pairs), strict=True):
        units.setdefault(unit, []).append(pair.solved)
    return list(units.values())


def _corrected(cells: list[Drop]) -> list[Drop]:
    adjusted = iter(holm([cell.p_value for cell in cells if cell.p_value is not None]))
    return [
        cell if cell.p_value is None else replace(cell, p_holm=next(adjusted)) for cell in cells
    ]
