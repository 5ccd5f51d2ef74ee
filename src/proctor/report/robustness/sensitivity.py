"""Sensitivity: which perturbation explains failures. A logistic model of a run's pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from proctor.report.robustness.drops import CellKey, Drop, EpisodePair, Robustness
from proctor.runs.journal import EpisodeRecord
from proctor.stats.independent_units import UnitCounts
from proctor.stats.logistic import FactorModel
from proctor.stats.rates import Interval, holm
from proctor.types import Outcome


@dataclass(frozen=True)
class Effect:
    """How a dimension, or one level of it, changes the log odds of failure."""

    dimension: str
    level: int | None
    """None: all levels, or a dimension without levels."""
    log_odds_ratio: float
    """Against the clean episodes of the same tasks."""
    interval: Interval
    """95% profile penalised likelihood interval."""
    p_value: float
    p_holm: float
    """Holm-corrected over the effects of the model."""


@dataclass(frozen=True)
class Sensitivity:
    """Two models: one coefficient per dimension, and one per cell."""

    dimensions: list[Effect]
    cells: list[Effect]


def make_sensitivity(robustness: Robustness) -> Sensitivity | None:
    """Fit both models to the pairs; None without pairs."""
    pairs = robustness.pairs
    if not pairs:
        return None
    known = {pair.cell for pair in pairs}
    cells: list[CellKey] = [
        (cell.dimension or "", cell.level)
        for cell in robustness.cells
        if (cell.dimension, cell.level) in known
    ]
    dimensions: list[CellKey] = [(name, None) for name in dict.fromkeys(d for d, _ in cells)]
    totals, weights = _weights(robustness.dimensions), _weights(robustness.cells)
    of_dimension = _effects(pairs, dimensions, lambda pair: (pair.cell[0], None), totals)
    return Sensitivity(of_dimension, _effects(pairs, cells, lambda pair: pair.cell, weights))


def _weights(drops: Sequence[Drop]) -> dict[CellKey, float]:
    """Return what a perturbed episode counts for, where several share a start."""
    return {
        (drop.dimension or "", drop.level): drop.effective_perturbed / drop.counts.n
        for drop in drops
        if drop.counts.n
    }


def _effects(
    pairs: Sequence[EpisodePair],
    factors: list[CellKey],
    factor_of: Callable[[EpisodePair], CellKey],
    weights: Mapping[CellKey, float],
) -> list[Effect]:
    """Fit the model ``log odds of failure = task + factor``.

    Episodes that share a start weigh together as their effective number.
    """
    task_of = {
        key: n for n, key in enumerate(dict.fromkeys(p.perturbation.clean_key for p in pairs))
    }
    place = {factor: n for n, factor in enumerate(factors, start=1)}
    rows: dict[tuple[int, int], list[EpisodeRecord]] = {}
    seen = set()
    for pair in pairs:
        task = task_of[pair.perturbation.clean_key]
        rows.setdefault((task, place[factor_of(pair)]), []).append(pair.perturbed)
        if pair.clean.key not in seen:
            seen.add(pair.clean.key)
            rows.setdefault((task, 0), []).append(pair.clean)
    failures, episodes = np.zeros((2, len(task_of), len(factors) + 1))
    for at, group in rows.items():
        if at[1]:
            effective = weights[factors[at[1] - 1]] * len(group)
        else:
            effective = UnitCounts((row, True) for row in group).effective_n
        failed = sum(row.outcome is not Outcome.SUCCESS for row in group)
        episodes[at], failures[at] = effective, effective * failed / len(group)
    model = FactorModel(failures, episodes)
    p_values = [model.p_value(number) for number in range(len(factors))]
    return [
        Effect(
            dimension=dimension,
            level=level,
            log_odds_ratio=float(model.log_odds_ratios[number]),
            interval=model.interval(number),
            p_value=p_values[number],
            p_holm=p_holm,
        )
        for number, ((dimension, level), p_holm) in enumerate(
            zip(factors, holm(p_values), strict=True)
        )
    ]
