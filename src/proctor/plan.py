"""From a benchmark and a number of episodes to the list of episodes, before anything starts."""

from __future__ import annotations

from proctor.benchmarks.base import Benchmark
from proctor.types import EpisodeSpec


def make_plan(benchmark: Benchmark, n_episodes: int, seed: int) -> list[EpisodeSpec]:
    """List every episode of every task, task by task. Creates no simulator."""
    return [
        benchmark.spec(task, index, seed)
        for task in benchmark.tasks()
        for index in range(n_episodes)
    ]


def workers_for(batch_size: int, n_episodes: int, cores: int) -> int:
    """Return how many simulators to run at once: as asked, or 0.7 of the cores when 0.

    Never more than there are episodes, never fewer than one; 64 is past the point where one
    parent keeps up with simulators that render.
    """
    wanted = batch_size or min(int(0.7 * cores), 64)
    return max(1, min(wanted, n_episodes))
