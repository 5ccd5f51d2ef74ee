"""Intervals of one rate over several tasks: of these tasks, or of tasks like these.

*These tasks*: with other episodes of the same tasks, how far would the rate move? Tasks differ, so
the rate varies less than the pooled interval says: only within tasks, not between them. *Tasks like
these*: with other tasks of the same kind, how far would it move? Then the differences between tasks
count, and more episodes of the same tasks hardly help.
"""

from __future__ import annotations

from collections.abc import Sequence

from proctor.stats.independent_units import RateCounts
from proctor.stats.rates import Interval, score_interval, wilson_interval

_LEAST_UNITS = 5
"""Independent units of each task from which on tasks are strata."""
_LEAST_TASKS = 3
"""Tasks from which on their spread says something about others."""


def these_tasks_interval(
    total: RateCounts, tasks: Sequence[RateCounts], confidence: float = 0.95, factor: float = 1
) -> Interval | None:
    """Return the interval of a rate for other episodes of the same tasks; None without episodes.

    Args:
        total: the counts of all episodes.
        tasks: the counts of each task.
        confidence: of the interval.
        factor: return the interval of so many times as many episodes with the same rates.
    """
    n = factor * stratified_n(total, tasks)
    return wilson_interval(total.successes, total.episodes, confidence, effective_n=n)


def is_stratified(tasks: Sequence[RateCounts]) -> bool:
    """Tell whether a rate over these tasks has the stratified interval, not the pooled one."""
    return len(tasks) > 1 and all(task.effective_n >= _LEAST_UNITS - 1e-9 for task in tasks)


def stratified_n(total: RateCounts, tasks: Sequence[RateCounts]) -> float:
    """Return the number of independent episodes of one task that make a rate as certain.

    The variance of the rate is sum n_t^2 v_t / N^2 for tasks of n_t episodes, N in all. With m
    independent units of a task, v_t = p (1 - p) / m (m + 1) / m: p is the task's rate, moved
    towards 1/2 by one unit, and the last factor makes up for a variance that few units show too
    small. The result is at least that of the pooled episodes, which it is with few units a task.
    """
    if not is_stratified(tasks) or total.successes in (0, total.episodes):
        return total.effective_n
    rate = total.successes / total.episodes
    variance = sum(task.episodes**2 * _variance(task) for task in tasks) / total.episodes**2
    return max(total.effective_n, rate * (1 - rate) / variance)


def _variance(task: RateCounts) -> float:
    m = task.effective_n
    rate = (task.successes / task.episodes * m + 0.5) / (m + 1)
    return rate * (1 - rate) / m * (m + 1) / m


def suite_interval(
    total: RateCounts, tasks: Sequence[RateCounts], confidence: float = 0.95
) -> Interval | None:
    """Return the interval of the mean rate over tasks like these; None with too few tasks.

    The tasks are taken for a random sample of many. The variance of the rate is that between tasks
    (CR1, as in ``micro_average``), at least that within them. The interval is Wilson's with
    Student's quantile, so the interval of these tasks lies in it.
    """
    many = len(tasks)
    if many < _LEAST_TASKS:
        return None
    from scipy.special import stdtrit

    rate = total.successes / total.episodes
    spread = sum((task.successes - task.episodes * rate) ** 2 for task in tasks)
    variance = many / (many - 1) * spread / total.episodes**2
    if rate in (0, 1):  # the tasks look alike: each is one observation
        n = min(float(many), total.effective_n)
    else:
        most = stratified_n(total, tasks)
        n = most if variance == 0 else min(most, max(1.0, rate * (1 - rate) / variance))
    quantile = float(stdtrit(many - 1, 0.5 + confidence / 2))
    return score_interval(total.successes, total.episodes, n, quantile)
