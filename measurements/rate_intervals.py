"""Coverage of the intervals of one rate over several tasks, by simulation.

``measurements.statistics`` prints the table with its others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from proctor.stats.independent_units import RateCounts
from proctor.stats.rates import Interval, wilson_interval
from proctor.stats.task_rates import suite_interval, these_tasks_interval

APART = tuple(np.linspace(0.02, 0.98, 25))


@dataclass(frozen=True)
class Suite:
    """A random sample of tasks from many, and the episodes of each."""

    name: str
    rates: Sequence[float]
    """The rates of the many tasks, each as frequent."""
    tasks: int
    starts: tuple[int, int]
    """Least and largest number of starts of a task."""
    repeats: int = 1
    """Episodes of each start."""
    copies: float = 0.0
    """Probability that another episode of a start is a copy of the first."""

    def simulated(self, repeats: int) -> Iterator[tuple[list[RateCounts], float]]:
        """Yield the counts of each task, and the true mean over these tasks."""
        rng = np.random.default_rng(44)
        for _ in range(repeats):
            rates = rng.choice(self.rates, self.tasks)
            sizes = rng.integers(self.starts[0], self.starts[1] + 1, self.tasks)
            counts = []
            for rate, starts in zip(rates, sizes, strict=True):
                draws = rng.random((starts, self.repeats))
                copied = rng.random(draws.shape) < self.copies
                won = int((np.where(copied, draws[:, :1], draws) < rate).sum())
                counts.append(RateCounts(won, int(starts) * self.repeats, float(starts)))
            yield counts, float(rates @ sizes / sizes.sum())


SUITES = (
    Suite("5 tasks of 10, all 90%", (0.9,), 5, (10, 10)),
    Suite("10 tasks of 10, all 50%", (0.5,), 10, (10, 10)),
    Suite("10 tasks of 4, 2 to 98%: pooled", APART, 10, (4, 4)),
    Suite("5 tasks of 10, 2 to 98%", APART, 5, (10, 10)),
    Suite("10 tasks of 20, 2 to 98%", APART, 10, (20, 20)),
    Suite("10 tasks of 5 to 50, 2 to 98%", APART, 10, (5, 50)),
    Suite("50 tasks of 10, 2 to 98%", APART, 50, (10, 10)),
    Suite("3 tasks of 50, 2 to 98%", APART, 3, (50, 50)),
    Suite("10 tasks of 20; 2%, 50% or 98%", (0.02, 0.5, 0.98), 10, (20, 20)),
    Suite("10 tasks of 10 starts, each 3 times, copies", APART, 10, (10, 10), 3, 1.0),
    Suite("10 tasks of 10 starts, each 3 times, half copies", APART, 10, (10, 10), 3, 0.5),
    Suite("10 tasks of 10 starts, each 3 times, independent", APART, 10, (10, 10), 3, 0.0),
)


class _Count:
    """How often an interval has the true value, and how wide it is."""

    def __init__(self) -> None:
        self.n = self.covered = 0
        self.width = 0.0

    def add(self, interval: Interval | None, true: float) -> None:
        assert interval is not None
        self.n += 1
        self.covered += interval[0] <= true <= interval[1]
        self.width += interval[1] - interval[0]

    def __str__(self) -> str:
        return f"{100 * self.covered / self.n:.1f} ({100 * self.width / self.n:.0f})"


def rates(repeats: int) -> None:
    """One rate over several tasks: per cent covered (width in points)."""
    heads = ("these tasks: episodes alike", "pooled", "by task", "tasks like these: by task")
    print(f"| tasks and episodes | {' | '.join(heads)} | suite |")
    print(f"|{' --- |' * 6}", flush=True)
    for suite in SUITES:
        counts = [_Count() for _ in range(5)]
        everywhere = float(np.mean(suite.rates))
        for tasks, here in suite.simulated(repeats):
            won, n = sum(task.successes for task in tasks), sum(task.episodes for task in tasks)
            total = RateCounts(won, n, n / suite.repeats)
            by_task = these_tasks_interval(total, tasks)
            counts[0].add(wilson_interval(won, n), here)
            counts[1].add(wilson_interval(won, n, effective_n=total.effective_n), here)
            counts[2].add(by_task, here)
            counts[3].add(by_task, everywhere)
            counts[4].add(suite_interval(total, tasks), everywhere)
        print(f"| {suite.name} | {' | '.join(map(str, counts))} |", flush=True)
