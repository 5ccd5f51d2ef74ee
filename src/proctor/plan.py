"""From a benchmark and a number of episodes to the list of episodes, before anything starts."""

from __future__ import annotations

from collections.abc import Collection

from proctor.benchmarks.base import Benchmark
from proctor.errors import UsageError
from proctor.types import MOST_EPISODES, EpisodeSpec


def make_plan(benchmark: Benchmark, indices: Collection[int], seed: int) -> list[EpisodeSpec]:
    """List the episodes with these indices of every task, task by task. Creates no simulator.

    Raises:
        UsageError: there would be more of them than a run can hold.
    """
    tasks = benchmark.tasks()
    if len(tasks) * len(indices) > MOST_EPISODES:
        raise UsageError(
            f"{len(tasks)} tasks with {len(indices)} episodes each are more than a run holds "
            f"({MOST_EPISODES:,}); lower --eval.n_episodes"
        )
    indices = sorted(set(indices))
    return [benchmark.spec(task, index, seed) for task in tasks for index in indices]


def workers_for(batch_size: int, n_episodes: int, cores: int) -> int:
    """Return how many simulators to run at once: as asked, or 0.7 of the cores when 0.

    Never more than there are episodes, never fewer than one; 64 is past the point where one
    parent keeps up with simulators that render.
    """
    wanted = batch_size or min(int(0.7 * cores), 64)
    return max(1, min(wanted, n_episodes))


_FOR_EACH_WORKER = 3
_FOR_THE_REST = 64


def descriptors_for(workers: int) -> int:
    """Return how many descriptors a run with so many workers takes, with some to spare."""
    return _FOR_THE_REST + _FOR_EACH_WORKER * workers


def workers_within(descriptors: int) -> int:
    """Return how many workers so many descriptors allow."""
    return max(0, (descriptors - _FOR_THE_REST) // _FOR_EACH_WORKER)
