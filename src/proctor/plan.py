"""From a benchmark and a number of episodes to the list of episodes, before anything starts."""

from __future__ import annotations

from collections.abc import Iterable

from proctor.benchmarks.base import Benchmark
from proctor.types import EpisodeSpec


def make_plan(benchmark: Benchmark, indices: Iterable[int], seed: int) -> list[EpisodeSpec]:
    """List the episodes with these indices of every task, task by task. Creates no simulator."""
    indices = sorted(set(indices))
    return [benchmark.spec(task, index, seed) for task in benchmark.tasks() for index in indices]


def workers_for(batch_size: int, n_episodes: int, cores: int) -> int:
    """Return how many simulators to run at once: as asked, or 0.7 of the cores when 0.

    Never more than there are episodes, never fewer than one; 64 is past the point where one
    parent keeps up with simulators that render.
    """
    wanted = batch_size or min(int(0.7 * cores), 64)
    return max(1, min(wanted, n_episodes))
