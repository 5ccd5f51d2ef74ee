"""Numbers of finished runs that a plan starts from: rate, agreement, tasks and speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proctor.report.compare.comparison import Criteria, compare_all
from proctor.report.run.run import Run
from proctor.report.run.summary import by_task, clean_rows, working_seconds


@dataclass(frozen=True)
class RunNumbers:
    """What one run, or a pair of runs, tells about the next one."""

    rate: float
    """Success rate of the first run."""
    starts: int
    """Independent units of the first run's rate."""
    tasks: int
    """Clean tasks; all, if every task is perturbed."""
    starts_per_s: float | None
    """Each with all its repeats and perturbed variants. None: the run recorded no time."""
    difference: float | None = None
    """Rate of the second run minus rate of the first, over their pairs; None for one run."""
    agreement: float | None = None
    """Share of their pairs with equal outcomes."""
    pairs: int | None = None


def run_numbers(runs: Sequence[Run]) -> RunNumbers:
    """Return the numbers of one run, or of two runs with common episodes."""
    first = runs[0].require_rate()
    tally = first.tally
    assert tally.rate is not None
    seconds = working_seconds(first.rows, first.record.sessions)
    alone = RunNumbers(
        rate=tally.rate,
        starts=tally.units.distinct,
        tasks=len(by_task(clean_rows(first.rows))),
        starts_per_s=tally.units.distinct / seconds if seconds > 0 else None,
    )
    if len(runs) == 1:
        return alone
    overall = compare_all([first, runs[1].require_rate()], Criteria())[0].overall
    assert overall.only_a is not None
    assert overall.only_b is not None
    assert overall.rate_a is not None
    return RunNumbers(
        rate=overall.rate_a,
        starts=alone.starts,
        tasks=alone.tasks,
        starts_per_s=alone.starts_per_s,
        difference=overall.difference,
        agreement=1 - (overall.only_a + overall.only_b) / overall.n_a,
        pairs=overall.n_a,
    )
