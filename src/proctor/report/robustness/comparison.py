"""Compare two policies within each cell of perturbation: the drop of B against the drop of A.

Only pairs that both runs completed count: the same perturbed task, seed and init state, each with
its clean counterpart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proctor.report.robustness.drops import CellKey, EpisodePair, Robustness, by_unit, count_pairs
from proctor.report.run.run import Run
from proctor.stats.differences import Paired, effective_pairs
from proctor.stats.drop_difference import DropDifference
from proctor.stats.independent_units import may_pair, plan_key, unit_numbers
from proctor.stats.rates import Interval, holm


@dataclass(frozen=True)
class DropChange:
    """The drop of B against the drop of A, in one cell, one dimension or all. None: no pairs."""

    dimension: str | None
    """None: all dimensions."""
    level: int | None
    """None: all levels, or a dimension without levels."""
    pairs: int
    """Pairs of perturbed and clean episodes that both runs have."""
    starts: int
    a: Paired
    b: Paired
    """Of each run: A is the perturbed episode, B the clean one."""
    drop_a: float | None
    drop_b: float | None
    difference: float | None
    """Drop of B minus drop of A; positive if the perturbation costs B more."""
    interval: Interval | None
    p_value: float | None
    p_holm: float | None
    """Holm-corrected: cells over the cells of all runs, dimensions over the dimensions."""

    @property
    def name(self) -> str:
        """The cell as text: ``camera 2``."""
        dimension = self.dimension or "all"
        return dimension if self.level is None else f"{dimension} {self.level}"


@dataclass(frozen=True)
class RobustnessComparison:
    """How differently two policies lose under perturbation."""

    cells: list[DropChange]
    dimensions: list[DropChange]
    all: DropChange
    left_out_a: int
    left_out_b: int
    """Pairs that the other run does not have."""


def compare_robustness(a: Run, b: Run, alpha: float) -> RobustnessComparison | None:
    """Compare the drops of two runs; None if either has none.

    P-values are not yet corrected.
    """
    if a.robustness is None or b.robustness is None:
        return None
    common = _common(a.robustness, b.robustness)
    cells = [
        (cell.dimension or "", cell.level)
        for cell in a.robustness.cells
        if any(pair.cell == (cell.dimension, cell.level) for pair, _ in common)
    ]
    dimensions = list(dict.fromkeys(dimension for dimension, _ in cells))

    def change(of: Sequence[CellKey], dimension: str | None, level: int | None) -> DropChange:
        inside = [pairs for pairs in common if pairs[0].cell in of]
        return _change(inside, dimension, level, alpha)

    return RobustnessComparison(
        cells=[change([cell], *cell) for cell in cells],
        dimensions=[change([c for c in cells if c[0] == name], name, None) for name in dimensions],
        all=change(cells, None, None),
        left_out_a=len(a.robustness.pairs) - len(common),
        left_out_b=len(b.robustness.pairs) - len(common),
    )


def correct_p_values(
    found: Sequence[RobustnessComparison | None],
) -> list[RobustnessComparison | None]:
    """Correct the p-values of several comparisons with one run: over all cells, all dimensions."""
    known = [one for one in found if one is not None]
    cells = _adjusted([cell for one in known for cell in one.cells])
    dimensions = _adjusted([cell for one in known for cell in one.dimensions])
    return [
        None
        if one is None
        else replace(
            one,
            cells=[next(cells) for _ in one.cells],
            dimensions=[next(dimensions) for _ in one.dimensions],
        )
        for one in found
    ]


def _adjusted(changes: list[DropChange]) -> Iterator[DropChange]:
    values = iter(holm([one.p_value for one in changes if one.p_value is not None]))
    return iter(
        [one if one.p_value is None else replace(one, p_holm=next(values)) for one in changes]
    )


def _common(a: Robustness, b: Robustness) -> list[tuple[EpisodePair, EpisodePair]]:
    """Return the pairs that both runs have, by perturbed task, seed and init state."""
    of_b = dict(_keyed(b.pairs))
    return [
        (pair, of_b[key])
        for key, pair in _keyed(a.pairs)
        if key in of_b and may_pair(pair.clean.started, of_b[key].clean.started)
    ]


def _keyed(pairs: Sequence[EpisodePair]) -> Iterator[tuple[tuple[Any, ...], EpisodePair]]:
    order: Counter[tuple[Any, ...]] = Counter()
    for pair in pairs:
        row = pair.perturbed
        start = (pair.perturbation, row.suite, row.task_id, plan_key(row))
        yield (*start, order[start]), pair
        order[start] += 1


def _change(
    common: Sequence[tuple[EpisodePair, EpisodePair]],
    dimension: str | None,
    level: int | None,
    alpha: float,
) -> DropChange:
    of_a, of_b = [a for a, _ in common], [b for _, b in common]
    units = unit_numbers(pair.clean for pair in of_a)
    found = DropDifference()
    for unit, a, b in zip(units, of_a, of_b, strict=True):
        found.add(unit, a.loss, b.loss)
    p = found.p_value if common else None
    return DropChange(
        dimension=dimension,
        level=level,
        pairs=len(common),
        starts=len(set(units)),
        a=count_pairs(of_a),
        b=count_pairs(of_b),
        drop_a=effective_pairs(by_unit(of_a)).difference,
        drop_b=effective_pairs(by_unit(of_b)).difference,
        difference=found.difference,
        interval=found.interval(alpha),
        p_value=p,
        p_holm=p,
    )
