"""Compare runs: differences of success rates per task and overall, with tests.

Pure functions of loaded runs. A is the reference; every other run B is compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from proctor.errors import UsageError
from proctor.number_text import points_text
from proctor.report.comparison_warnings import comparison_warnings, pairing_warnings
from proctor.report.pairing import PairedSides, independent_samples, paired_episodes
from proctor.report.protocol_differences import changed_policy, require_same_worlds
from proctor.report.robustness_comparison import (
    RobustnessComparison,
    compare_robustness,
    correct_p_values,
)
from proctor.report.run import Run
from proctor.report.summary import clean_rows, tally
from proctor.runs.journal import EpisodeRecord
from proctor.stats.differences import (
    Independent,
    Paired,
    Samples,
    detectable_difference,
    detectable_difference_paired,
    difference_interval,
    p_value,
    p_worse,
    probability_b_better,
)
from proctor.stats.rates import AverageRate, Interval, holm, mean_over_tasks
from proctor.types import Outcome


@dataclass(frozen=True)
class Criteria:
    """The significance level of all tests, and the margin by which B may be worse."""

    alpha: float = 0.05
    margin: float = 0.0
    paired: bool = True


@dataclass(frozen=True)
class Change:
    """The difference between A and B on one task, or on all. None: not measured."""

    name: str
    successes_a: int
    successes_b: int
    n_a: int
    n_b: int
    only_a: int | None
    """Episodes that only A solved; None if the episodes are not paired."""
    only_b: int | None
    difference: float | None
    interval: Interval | None
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
    left_out_a: int
    left_out_b: int
    """Episodes without a pair in the other run."""
    repeated_a: int
    repeated_b: int
    """Episodes left out because another episode of the same start is counted."""
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
    def is_worse(self) -> bool:
        """Whether B is significantly worse by more than the margin."""
        return self.p_worse_holm <= self.criteria.alpha

    def __str__(self) -> str:
        if self.difference is None or self.interval is None or self.p_value is None:
            return "B - A n/a"
        found = f"B - A {points_text(self.difference, self.interval)} points"
        worse = ", worse" if self.is_worse else ""
        return f"{found}, p={self.p_value:.3g}, n={self.overall.n_a}+{self.overall.n_b}{worse}"

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

    Raises:
        UsageError: a folder is named twice; paired runs share no episode, or their seeds stand for
            different worlds; unpaired runs share no task.
    """
    _refuse_duplicates(runs)
    found = [_compared(runs[0], other, criteria, len(runs) - 1) for other in runs[1:]]
    overall = holm([_known(comparison.overall.p_value) for comparison in found])
    worse = holm([comparison.p_worse for comparison in found])
    every = [task.p_value for comparison in found for task in comparison.tasks]
    of_tasks = iter(holm([p for p in every if p is not None]))
    drops = correct_p_values([comparison.robustness for comparison in found])
    return [
        replace(
            comparison,
            robustness=of_drops,
            overall=replace(comparison.overall, p_holm=p),
            p_worse_holm=p_worse,
            tasks=[
                task if task.p_value is None else replace(task, p_holm=next(of_tasks))
                for task in comparison.tasks
            ],
        )
        for comparison, p, p_worse, of_drops in zip(found, overall, worse, drops, strict=True)
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


def _compared(a: Run, b: Run, criteria: Criteria, n_runs: int) -> Comparison:
    """Compare B with A; p-values are not yet corrected for the ``n_runs`` comparisons."""
    if criteria.paired:
        protocols, what = (a.record.protocol, b.record.protocol), f"{a.path} and {b.path}"
        require_same_worlds(*protocols, what, "add --unpaired to compare them as separate samples")
    sides = paired_episodes(a, b) if criteria.paired else independent_samples(a, b)
    counted = {task: _count(sides, task, criteria) for task in sides.tasks}
    tasks = [_change(task, counts, sides.tasks[task], criteria) for task, counts in counted.items()]
    everything = _sum(list(counted.values()))
    if everything.difference is None:
        raise UsageError(
            f"{a.path} and {b.path} have no common episode that both completed: n/a",
            code="run.no-common-episode",
        )
    rows_a, rows_b = sides.rows_a, sides.rows_b
    worse = p_worse(everything, criteria.margin)
    return Comparison(
        a=a.path,
        b=b.path,
        criteria=criteria,
        tasks=tasks,
        overall=_change("all", everything, (rows_a, rows_b), criteria),
        macro=mean_over_tasks([task.difference for task in tasks if task.difference is not None]),
        p_worse=worse,
        p_worse_holm=worse,
        n_runs=n_runs,
        detectable=_detectable(everything, criteria.alpha / n_runs),
        left_out_a=len(clean_rows(a.rows)) - len(rows_a) - sides.repeated_a,
        left_out_b=len(clean_rows(b.rows)) - len(rows_b) - sides.repeated_b,
        repeated_a=sides.repeated_a,
        repeated_b=sides.repeated_b,
        policies=changed_policy(a.record.protocol, b.record.protocol),
        warnings=comparison_warnings(a, b, paired=criteria.paired) + pairing_warnings(a, b, sides),
        robustness=compare_robustness(a, b, criteria.alpha) if criteria.paired else None,
    )


def _count(sides: PairedSides, task: str, criteria: Criteria) -> Samples:
    if not criteria.paired:
        of_a, of_b = map(tally, sides.tasks[task])
        return Independent(of_a.successes, of_a.episodes, of_b.successes, of_b.episodes)
    wins = [
        (x.outcome is Outcome.SUCCESS, y.outcome is Outcome.SUCCESS)
        for (x, y), *_ in sides.units(task)
    ]
    return Paired(
        both=wins.count((True, True)),
        only_a=wins.count((True, False)),
        only_b=wins.count((False, True)),
        neither=wins.count((False, False)),
    )


def _sum(counts: list[Samples]) -> Samples:
    kind = type(counts[0])
    names = kind.__dataclass_fields__
    return kind(**{name: sum(getattr(one, name) for one in counts) for name in names})


def _change(
    name: str,
    counts: Samples,
    sides: tuple[list[EpisodeRecord], list[EpisodeRecord]],
    criteria: Criteria,
) -> Change:
    """Describe the difference on one task, or on all."""
    measured = counts.difference is not None
    p = p_value(counts) if measured else None
    a, b, n_a, n_b = _margins(counts)
    of_a, of_b = tally(sides[0]), tally(sides[1])
    return Change(
        name=name,
        successes_a=a,
        successes_b=b,
        n_a=n_a,
        n_b=n_b,
        only_a=counts.only_a if isinstance(counts, Paired) else None,
        only_b=counts.only_b if isinstance(counts, Paired) else None,
        difference=counts.difference,
        interval=difference_interval(counts, 1 - criteria.alpha),
        p_value=p,
        p_holm=p,
        probability_b_better=probability_b_better(counts) if measured else None,
        errors_a=of_a.errors,
        errors_b=of_b.errors,
        diverged_a=of_a.diverged,
        diverged_b=of_b.diverged,
    )


def _margins(counts: Samples) -> tuple[int, int, int, int]:
    """Return the successes of A and B and the episodes of A and B."""
    if isinstance(counts, Independent):
        return counts.a, counts.b, counts.n_a, counts.n_b
    return counts.both + counts.only_a, counts.both + counts.only_b, counts.n, counts.n


def _detectable(counts: Samples, alpha: float) -> float | None:
    a, _, n, _ = _margins(counts)
    if not n:
        return None
    if isinstance(counts, Paired):
        return detectable_difference_paired(n, (counts.only_a + counts.only_b) / n, alpha)
    return detectable_difference(n, a / n, alpha)
