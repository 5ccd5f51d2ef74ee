"""Two runs side by side: which episodes they share, what changed, and whether by more than chance.

Pure functions of what two run folders hold. B is compared with A; A is the reference.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from proctor.errors import UsageError
from proctor.files import read_plain
from proctor.recorders.journal import FILE_NAME, EpisodeRow, read_journal
from proctor.report.differences import (
    Counts,
    Independent,
    Paired,
    detectable_difference,
    detectable_difference_paired,
    difference_interval,
    p_value,
    p_worse,
    probability_b_better,
)
from proctor.report.protocols import changed_protocol, require_same_worlds
from proctor.report.statistics import Average, Interval, holm, mean_over_tasks
from proctor.report.summary import tally
from proctor.run import EVAL_INFO_FILE, RunFolder, RunRecord
from proctor.types import EpisodeSpec, Outcome

PairKey: TypeAlias = tuple[str, int, int | None]
"""(task name, seed, init state): episodes that start from the same world have the same."""


@dataclass(frozen=True)
class RunResults:
    """A run as it lies in its folder."""

    path: Path
    record: RunRecord
    rows: list[EpisodeRow]
    damaged: list[int]
    stopped: str | None = None
    """Why it was stopped before all its episodes had been run."""


@dataclass(frozen=True)
class Criteria:
    """What counts as a change: the level of all tests, and by how much B may be worse."""

    alpha: float = 0.05
    margin: float = 0.0
    paired: bool = True


@dataclass(frozen=True)
class Change:
    """What became of one task, or of all. None where nothing was measured."""

    name: str
    successes_a: int
    successes_b: int
    n_a: int
    n_b: int
    only_a: int | None
    """Episodes that only A solved; None when the episodes are not paired."""
    only_b: int | None
    difference: float | None
    interval: Interval | None
    p_value: float | None
    p_holm: float | None
    """Corrected for the number of tasks; for all tasks together the p-value itself."""
    probability_b_better: float | None
    errors_a: int
    errors_b: int
    diverged_a: int
    diverged_b: int
    """Of the failed episodes, those that broke the simulator."""


@dataclass(frozen=True)
class Comparison:
    """B against A."""

    a: Path
    b: Path
    criteria: Criteria
    tasks: list[Change]
    overall: Change
    macro: Average | None
    """The mean of the tasks' differences, with a standard error clustered by task."""
    p_worse: float
    """Of "B is worse by at most the margin": small when B is worse by more than that."""
    detectable: float | None
    """The smallest true difference that this many episodes would show, with 80% power."""
    left_out_a: int
    left_out_b: int
    """Episodes without a partner in the other run."""
    warnings: list[str]

    def changed(self, sign: int) -> list[Change]:
        """Return the tasks that became better (1) or worse (-1) beyond chance."""
        return [
            task
            for task in self.tasks
            if task.p_holm is not None
            and task.p_holm <= self.criteria.alpha
            and task.difference is not None
            and task.difference * sign > 0
        ]


def load_run(path: Path) -> RunResults:
    """Read a run that has something to compare.

    Raises:
        UsageError: it is no run folder, or no episode of it was completed.
    """
    record = RunFolder(path).read()
    if record is None:
        raise UsageError(f"{path} is not a run folder (it has no run.json)")
    journal = read_journal(path)
    if not tally(journal.rows).episodes:
        raise UsageError(f"{path} has no finished episode: its success rate is n/a")
    return RunResults(path, record, journal.rows, journal.damaged, _why_stopped(path))


def _why_stopped(path: Path) -> str | None:
    try:
        ours = json.loads(read_plain(path / EVAL_INFO_FILE))["proctor"]
        return None if ours["complete"] or ours["stopped"] is None else str(ours["stopped"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # the run goes on, was killed or is older than stop rules


def pair_key(episode: EpisodeRow | EpisodeSpec) -> PairKey:
    """Return what two episodes that start from the same world share."""
    task = episode.task if isinstance(episode, EpisodeRow) else episode.task.name
    return (task, episode.seed, episode.init_state)


def compare(a: RunResults, b: RunResults, criteria: Criteria) -> Comparison:
    """Compare B with A.

    Raises:
        UsageError: they share no episode or, when they are not to be paired, no task; or they are
            to be paired, and their seeds name different worlds.
    """
    if criteria.paired:
        protocols, what = (a.record.protocol, b.record.protocol), f"{a.path} and {b.path}"
        require_same_worlds(*protocols, what, "add --unpaired to compare them as separate samples")
    sides = paired_episodes(a, b) if criteria.paired else _by_task(a, b)
    counted = {task: _count(of_a, of_b, criteria) for task, (of_a, of_b) in sides.items()}
    p_values = [p_value(counts) for counts in counted.values() if counts.difference is not None]
    corrected = iter(holm(p_values))
    tasks = [
        _change(task, counts, sides[task], criteria, corrected) for task, counts in counted.items()
    ]
    everything = _sum(list(counted.values()))
    if everything.difference is None:
        raise UsageError(f"{a.path} and {b.path} have no common episode that both completed: n/a")
    rows_a = [row for of_a, _ in sides.values() for row in of_a]
    rows_b = [row for _, of_b in sides.values() for row in of_b]
    return Comparison(
        a=a.path,
        b=b.path,
        criteria=criteria,
        tasks=tasks,
        overall=_change("all", everything, (rows_a, rows_b), criteria, None),
        macro=mean_over_tasks([task.difference for task in tasks if task.difference is not None]),
        p_worse=p_worse(everything, criteria.margin),
        detectable=_detectable(everything, criteria.alpha),
        left_out_a=len(a.rows) - len(rows_a),
        left_out_b=len(b.rows) - len(rows_b),
        warnings=warnings_of(a, b, criteria),
    )


def regressions(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return those whose B is worse by more than the margin, Holm-corrected for their number."""
    corrected = holm([comparison.p_worse for comparison in comparisons])
    return [c for c, p in zip(comparisons, corrected, strict=True) if p <= c.criteria.alpha]


Sides: TypeAlias = dict[str, tuple[list[EpisodeRow], list[EpisodeRow]]]
"""The episodes of A and of B that are compared, task by task."""


def paired_episodes(a: RunResults, b: RunResults) -> Sides:
    """Put episodes that start from the same world at the same place of both lists.

    Raises:
        UsageError: they share no episode.
    """
    in_a: dict[PairKey, EpisodeRow] = {}
    for row in a.rows:
        in_a.setdefault(pair_key(row), row)
    sides: Sides = {}
    for row in sorted(b.rows, key=lambda row: row.key):
        partner = in_a.pop(pair_key(row), None)
        if partner is not None:
            of_a, of_b = sides.setdefault(row.task, ([], []))
            of_a.append(partner)
            of_b.append(row)
    if not sides:
        raise UsageError(
            f"{a.path} and {b.path} have no common episode (task, seed, init state); "
            "run B with A's --seed and tasks, or compare as separate samples with --unpaired"
        )
    return sides


def _by_task(a: RunResults, b: RunResults) -> Sides:
    """Take, of every task in both, as many completed episodes of A as of B.

    Otherwise a run with more episodes of the easy tasks would look better than it is.
    """
    in_a, in_b = _rows_by_task(a.rows), _rows_by_task(b.rows)
    sides: Sides = {}
    for task in (task for task in in_a if task in in_b):
        n = min(tally(in_a[task]).episodes, tally(in_b[task]).episodes)
        sides[task] = _first_completed(in_a[task], n), _first_completed(in_b[task], n)
    if not sides:
        raise UsageError(f"{a.path} and {b.path} have no common task")
    return sides


def _rows_by_task(rows: Iterable[EpisodeRow]) -> dict[str, list[EpisodeRow]]:
    tasks: dict[str, list[EpisodeRow]] = {}
    for row in sorted(rows, key=lambda row: row.key):
        tasks.setdefault(row.task, []).append(row)
    return tasks


def _first_completed(rows: list[EpisodeRow], n: int) -> list[EpisodeRow]:
    """Return the first ``n`` completed episodes, with all that errored."""
    done = [row for row in rows if row.outcome.counts]
    return [row for row in rows if not row.outcome.counts] + done[:n]


def _count(a: list[EpisodeRow], b: list[EpisodeRow], criteria: Criteria) -> Counts:
    if not criteria.paired:
        of_a, of_b = tally(a), tally(b)
        return Independent(of_a.successes, of_a.episodes, of_b.successes, of_b.episodes)
    won = [
        (x.outcome is Outcome.SUCCESS, y.outcome is Outcome.SUCCESS)
        for x, y in zip(a, b, strict=True)
        if x.outcome.counts and y.outcome.counts
    ]
    return Paired(
        both=won.count((True, True)),
        only_a=won.count((True, False)),
        only_b=won.count((False, True)),
        neither=won.count((False, False)),
    )


def _sum(counts: list[Counts]) -> Counts:
    kind = type(counts[0])
    names = kind.__dataclass_fields__
    return kind(**{name: sum(getattr(one, name) for one in counts) for name in names})


def _change(
    name: str,
    counts: Counts,
    sides: tuple[list[EpisodeRow], list[EpisodeRow]],
    criteria: Criteria,
    corrected: Iterator[float] | None,
) -> Change:
    """Describe what became of a task. ``corrected`` gives its Holm p-value, unless it is all."""
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
        p_holm=p if corrected is None or not measured else next(corrected),
        probability_b_better=probability_b_better(counts) if measured else None,
        errors_a=of_a.errors,
        errors_b=of_b.errors,
        diverged_a=of_a.diverged,
        diverged_b=of_b.diverged,
    )


def _margins(counts: Counts) -> tuple[int, int, int, int]:
    """Return the successes of A and B and the episodes of A and B."""
    if isinstance(counts, Independent):
        return counts.a, counts.b, counts.n_a, counts.n_b
    return counts.both + counts.only_a, counts.both + counts.only_b, counts.n, counts.n


def _detectable(counts: Counts, alpha: float) -> float | None:
    a, _, n, _ = _margins(counts)
    if not n:
        return None
    if isinstance(counts, Paired):
        return detectable_difference_paired(n, (counts.only_a + counts.only_b) / n, alpha)
    return detectable_difference(n, a / n, alpha)


def warnings_of(a: RunResults, b: RunResults, criteria: Criteria) -> list[str]:
    """Name what differs besides the policy, and what could not be read."""
    lines = []
    for run in (a, b):
        if run.damaged:
            numbers = ", ".join(map(str, run.damaged))
            lines.append(f"{run.path}: skipped unreadable lines of {FILE_NAME}: {numbers}")
        if run.stopped is not None:
            lines.append(
                f"{run.path} stopped itself early ({run.stopped}): p-values and intervals here do "
                "not allow for that"
            )
    return lines + changed_protocol(a.record.protocol, b.record.protocol, seeds=criteria.paired)
