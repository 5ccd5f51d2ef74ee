"""Compare runs: differences of success rates per task and overall, with tests.

Pure functions of loaded runs. A is the reference; every other run B is compared with it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from proctor.errors import UsageError
from proctor.number_text import points_text
from proctor.report.compare.pairing import PairedSides, independent_samples, paired_episodes
from proctor.report.compare.protocol_differences import changed_policy, require_same_worlds
from proctor.report.compare.warnings import comparison_warnings, pairing_warnings
from proctor.report.robustness.comparison import (
    RobustnessComparison,
    compare_robustness,
    correct_p_values,
)
from proctor.report.run.run import Run
from proctor.report.run.summary import clean_rows, tally
from proctor.runs.journal import EpisodeRecord
from proctor.stats.anytime import AnytimeInterval, anytime_interval
from proctor.stats.differences import (
    Independent,
    Paired,
    Samples,
    compatible_intervals,
    detectable_difference,
    difference_interval,
    effective_pairs,
    needed_for,
    p_value,
    p_worse,
    probability_b_better,
)
from proctor.stats.independent_units import RateCounts
from proctor.stats.rates import AverageRate, Interval, holm, mean_over_tasks
from proctor.stats.task_rates import these_tasks_interval
from proctor.types import Outcome


@dataclass(frozen=True)
class Criteria:
    """The significance level of all tests, and the margin by which B may be worse."""

    alpha: float = 0.05
    margin: float = 0.0
    paired: bool = True


BETTER, WORSE, UNDECIDED = "better", "worse", "undecided"
"""The verdict on B."""
SMALL_DIFFERENCE = 0.05
"""An undecided comparison says how many more episodes would show this difference."""


@dataclass(frozen=True)
class Change:
    """The difference between A and B on one task, or on all. None: not measured."""

    name: str
    successes_a: int
    successes_b: int
    n_a: int
    n_b: int
    starts: int
    """Independent starts of each run. Every start weighs the same in the rates."""
    rate_a: float | None
    rate_b: float | None
    interval_a: Interval | None
    interval_b: Interval | None
    """Intervals of the rates for these tasks, with coverage 1 - alpha. Anytime-valid if results
    may have decided the run's number of episodes."""
    only_a: int | None
    """Episodes that only A solved; None if the episodes are not paired."""
    only_b: int | None
    difference: float | None
    interval: Interval | None
    """With coverage 1 - alpha. For one task: of this row alone, as ``p_value``. For all tasks
    together: it agrees with ``p_holm``, and covers together with the intervals of all runs."""
    p_value: float | None
    p_holm: float | None
    """Holm-corrected. For one task: over the tasks of all runs that are compared with A. For all
    tasks together: over those runs."""
    probability_b_better: float | None
    errors_a: int
    errors_b: int
    diverged_a: int
    diverged_b: int
    """Failed episodes in which the simulation diverged."""


@dataclass(frozen=True)
class Comparison:
    """The comparison of B with A."""

    a: Path
    b: Path
    criteria: Criteria
    tasks: list[Change]
    overall: Change
    macro: AverageRate | None
    """The mean of the tasks' differences, with a standard error clustered by task."""
    p_worse: float
    """p-value of "B is worse by at most the margin"; small if B is worse by more."""
    p_worse_holm: float
    """Holm-corrected over the runs."""
    n_runs: int
    """Number of runs that are compared with A."""
    detectable: float | None
    """Minimum detectable difference with 80% power, corrected for the number of runs."""
    more_needed: int
    """Further starts of each run that would show a difference of 5 points, with 80% power and to
    two digits; 0: there are enough."""
    left_out_a: int
    left_out_b: int
    """Episodes without a pair in the other run."""
    repeated_a: int
    repeated_b: int
    """Episodes left out: repeats that the other run has fewer of, or, if the runs are not paired,
    episodes of a start that is counted."""
    policies: list[str]
    """The fields in which the policies differ."""
    warnings: list[str]
    robustness: RobustnessComparison | None = None
    """The drops under perturbation; None if the runs have none, or are not paired."""

    @property
    def difference(self) -> float | None:
        """The success rate of B minus that of A, over all tasks."""
        return self.overall.difference

    @property
    def interval(self) -> Interval | None:
        """The interval of the difference, with coverage 1 - alpha."""
        return self.overall.interval

    @property
    def p_value(self) -> float | None:
        """p-value of "A and B are equal over all tasks", Holm-corrected over the runs."""
        return self.overall.p_holm

    @property
    def differs(self) -> bool:
        """Whether B is significantly better or worse than A over all tasks."""
        p = self.overall.p_holm
        return p is not None and p <= self.criteria.alpha

    @property
    def verdict(self) -> str:
        """Whether B is significantly ``better`` or ``worse`` than A, or that is ``undecided``."""
        if not self.differs:
            return UNDECIDED
        return BETTER if (self.difference or 0.0) > 0 else WORSE

    @property
    def is_worse(self) -> bool:
        """Whether B is significantly worse by more than the margin."""
        return self.p_worse_holm <= self.criteria.alpha

    def __str__(self) -> str:
        if self.p_value is None:
            return "B - A n/a"
        found = f"B - A {points_text(self.difference, self.interval)} points"
        n = f"n={self.overall.n_a}+{self.overall.n_b}"
        return f"{found}, p={self.p_value:.3g}, {n}, {self.verdict}"

    def __repr__(self) -> str:
        return f"Comparison({self}, a={str(self.a)!r}, b={str(self.b)!r})"

    def changed(self, sign: int) -> list[Change]:
        """Return the tasks on which B is significantly better (1) or worse (-1)."""
        return [
            task
            for task in self.tasks
            if task.p_holm is not None
            and task.p_holm <= self.criteria.alpha
            and task.difference is not None
            and task.difference * sign > 0
        ]


def compare_all(runs: Sequence[Run], criteria: Criteria) -> list[Comparison]:
    """Compare every other run with the first.

    Among many equal runs, one looks better by chance. So p-values are Holm-corrected: over the
    runs, and separately over all tasks of all runs. Holm's correction allows dependent tests,
    which these are: A is in all of them.
    """
    _refuse_duplicates(runs)
    found, samples = [], []
    for other in runs[1:]:
        comparison, counts = _compared(runs[0], other, criteria, len(runs) - 1)
        found.append(comparison)
        samples.append(counts)
    overall = holm([_known(comparison.overall.p_value) for comparison in found])
    intervals = compatible_intervals(samples, overall, criteria.alpha)
    worse = holm([comparison.p_worse for comparison in found])
    every = [task.p_value for comparison in found for task in comparison.tasks]
    of_tasks = iter(holm([p for p in every if p is not None]))
    drops = correct_p_values([comparison.robustness for comparison in found])
    return [
        replace(
            comparison,
            robustness=of_drops,
            overall=replace(comparison.overall, p_holm=p, interval=interval),
            p_worse_holm=p_worse,
            tasks=[
                task if task.p_value is None else replace(task, p_holm=next(of_tasks))
                for task in comparison.tasks
            ],
        )
        for comparison, p, interval, p_worse, of_drops in zip(
            found, overall, intervals, worse, drops, strict=True
        )
    ]


def _known(p: float | None) -> float:
    assert p is not None, "runs without a common result are never compared"
    return p


def _refuse_duplicates(runs: Sequence[Run]) -> None:
    """Refuse a run folder that is named twice, by its path or by a symlink."""
    named: dict[Path, Path] = {}
    for run in runs:
        folder = run.path.resolve()
        if folder in named:
            names = " and ".join(dict.fromkeys((str(named[folder]), str(run.path))))
            raise UsageError(
                f"{names}: one folder, named twice; name every run once", code="run.duplicate"
            )
        named[folder] = run.path


def _compared(a: Run, b: Run, criteria: Criteria, n_runs: int) -> tuple[Comparison, Samples]:
    """Compare B with A, and return the counts; nothing is corrected for the ``n_runs`` yet."""
    if criteria.paired:
        protocols, what = (a.record.protocol, b.record.protocol), f"{a.path} and {b.path}"
        require_same_worlds(*protocols, what, "add --unpaired to compare them as separate samples")
    sides = paired_episodes(a, b) if criteria.paired else independent_samples(a, b)
    count = _count_pairs if criteria.paired else _count_samples
    counted = [count(sides, task) for task in sides.tasks]
    everything = _Counted.together(counted)
    if everything.samples.difference is None:
        raise UsageError(
            f"{a.path} and {b.path} have no common episode that both completed: n/a",
            code="run.no-common-episode",
        )
    how_a, how_b = a.monitored, b.monitored
    tasks = [
        replace(
            _change(task, one, sides.tasks[task], criteria, (how_a.task, how_b.task)),
            interval=difference_interval(one.samples, criteria.alpha),
        )
        for task, one in zip(sides.tasks, counted, strict=True)
    ]
    rows_a, rows_b = sides.rows_a, sides.rows_b
    worse = p_worse(everything.samples, criteria.margin)
    comparison = Comparison(
        a=a.path,
        b=b.path,
        criteria=criteria,
        tasks=tasks,
        overall=_change(
            "all", everything, (rows_a, rows_b), criteria, (how_a.overall, how_b.overall)
        ),
        macro=mean_over_tasks([task.difference for task in tasks if task.difference is not None]),
        p_worse=worse,
        p_worse_holm=worse,
        n_runs=n_runs,
        detectable=detectable_difference(everything.samples, criteria.alpha / n_runs),
        more_needed=_more_needed(everything, criteria.alpha / n_runs),
        left_out_a=len(clean_rows(a.rows)) - len(rows_a) - sides.repeated_a,
        left_out_b=len(clean_rows(b.rows)) - len(rows_b) - sides.repeated_b,
        repeated_a=sides.repeated_a,
        repeated_b=sides.repeated_b,
        policies=changed_policy(a.record.protocol, b.record.protocol),
        warnings=comparison_warnings(a, b, paired=criteria.paired) + pairing_warnings(a, b, sides),
        robustness=compare_robustness(a, b, criteria.alpha) if criteria.paired else None,
    )
    return comparison, everything.samples


Units: TypeAlias = list[list[tuple[bool, bool]]]
Monitored: TypeAlias = tuple[AnytimeInterval | None, AnytimeInterval | None]
"""Of A and of B; None: the number of episodes was fixed in advance."""


@dataclass(frozen=True)
class _Counted:
    """The counts of one task, or of all."""

    raw: Samples
    units: Units
    """Of every start, the success of A and of B in each pair; empty if there are no pairs."""
    tasks: Sequence[_Counted] = ()
    """Of a rate over several tasks."""

    @cached_property
    def samples(self) -> Samples:
        """Effective counts, in which every start weighs the same."""
        return effective_pairs(self.units) if isinstance(self.raw, Paired) else self.raw

    @property
    def starts(self) -> int:
        """Independent starts of each run."""
        return len(self.units) if isinstance(self.raw, Paired) else self.raw.n_a

    @classmethod
    def together(cls, counted: Sequence[_Counted]) -> _Counted:
        """Return the counts of all tasks."""
        kind = type(counted[0].raw)
        sums = {
            name: sum(getattr(one.raw, name) for one in counted)
            for name in kind.__dataclass_fields__
        }
        return cls(kind(**sums), [unit for one in counted for unit in one.units], counted)

    def rates(self) -> tuple[RateCounts, RateCounts]:
        """Return the counts of A and of B; every start is one episode."""
        if isinstance(self.raw, Independent):
            of_a, of_b = float(self.raw.a), float(self.raw.b)
        else:
            of_a, of_b = (
                math.fsum(sum(pair[side] for pair in unit) / len(unit) for unit in self.units)
                for side in (0, 1)
            )
        n = self.starts
        return RateCounts(of_a, n, n), RateCounts(of_b, n, n)

    def firsts(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return successes and number of episodes of A and of B, the first of every start."""
        if isinstance(self.raw, Independent):
            return (self.raw.a, self.raw.n_a), (self.raw.b, self.raw.n_b)
        a, b = (sum(unit[0][side] for unit in self.units) for side in (0, 1))
        return (a, self.starts), (b, self.starts)

    def rate_intervals(
        self, alpha: float, monitored: Monitored
    ) -> tuple[Interval | None, Interval | None]:
        """Return the intervals of both rates for these tasks."""
        of_tasks = [task.rates() for task in self.tasks if task.starts]
        a, b = (
            these_tasks_interval(total, [task[side] for task in of_tasks], 1 - alpha)
            if how is None
            else anytime_interval(*first, how.width, 1 - alpha)
            for side, (total, first, how) in enumerate(
                zip(self.rates(), self.firsts(), monitored, strict=True)
            )
        )
        return a, b


def _count_pairs(sides: PairedSides, task: str) -> _Counted:
    units = [
        [(x.outcome is Outcome.SUCCESS, y.outcome is Outcome.SUCCESS) for x, y in unit]
        for unit in sides.units(task)
    ]
    wins = Counter(pair for unit in units for pair in unit)
    raw = Paired(wins[True, True], wins[True, False], wins[False, True], wins[False, False])
    return _Counted(raw, units)


def _count_samples(sides: PairedSides, task: str) -> _Counted:
    of_a, of_b = map(tally, sides.tasks[task])
    return _Counted(Independent(of_a.successes, of_a.episodes, of_b.successes, of_b.episodes), [])


def _more_needed(counted: _Counted, alpha: float) -> int:
    """Return how many starts more would show a small difference, rounded up to two digits."""
    n = counted.samples.n if isinstance(counted.samples, Paired) else counted.starts
    needed = needed_for(counted.samples, SMALL_DIFFERENCE, alpha) * counted.starts / n
    more = max(0, math.ceil(needed) - counted.starts)
    unit: int = 10 ** max(0, len(str(more)) - 2)
    return math.ceil(more / unit) * unit


def _change(
    name: str,
    counted: _Counted,
    sides: tuple[list[EpisodeRecord], list[EpisodeRecord]],
    criteria: Criteria,
    monitored: Monitored,
) -> Change:
    """Describe the difference on one task, or on all; its interval depends on the other runs.

    A monitored rate, of A or of B, may have decided the run's number of episodes.
    """
    samples, alpha = counted.samples, criteria.alpha
    measured = samples.difference is not None
    p = p_value(samples) if measured else None
    a, n_a, b, n_b = (round(one) for one in _margins(counted.raw))
    of_a, of_b = counted.rates()
    interval_a, interval_b = counted.rate_intervals(alpha, monitored)
    in_a, in_b = tally(sides[0]), tally(sides[1])
    return Change(
        name=name,
        successes_a=a,
        successes_b=b,
        n_a=n_a,
        n_b=n_b,
        starts=counted.starts,
        rate_a=of_a.successes / of_a.episodes if measured else None,
        rate_b=of_b.successes / of_b.episodes if measured else None,
        interval_a=interval_a,
        interval_b=interval_b,
        only_a=round(counted.raw.only_a) if isinstance(counted.raw, Paired) else None,
        only_b=round(counted.raw.only_b) if isinstance(counted.raw, Paired) else None,
        difference=samples.difference,
        interval=None,
        p_value=p,
        p_holm=p,
        probability_b_better=probability_b_better(samples) if measured else None,
        errors_a=in_a.errors,
        errors_b=in_b.errors,
        diverged_a=in_a.diverged,
        diverged_b=in_b.diverged,
    )


def _margins(counts: Samples) -> tuple[float, float, float, float]:
    """Return the successes and the episodes of A, and those of B."""
    if isinstance(counts, Independent):
        return counts.a, counts.n_a, counts.b, counts.n_b
    return counts.both + counts.only_a, counts.n, counts.both + counts.only_b, counts.n
