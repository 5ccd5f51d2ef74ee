"""Starts of training data, apart from the published ones that evaluations use.

A benchmark with a finite list of init states (LIBERO) is evaluated from that list. Recordings and
online learning start from scenes that the simulator places itself, so that a policy is not trained
on the starts of its evaluation.
"""

from __future__ import annotations

from dataclasses import replace

from proctor.benchmarks.base import Benchmark
from proctor.types import EpisodeSpec, Task, default_world

_INDICES = 10_000
"""Indices that seeds choose from; a multiple of LIBERO's 50 init states."""
PUBLISHED_NOTE = (
    "Its episodes start from the published init states, as evaluations do: a policy trained on "
    "them has seen the starts of its evaluation"
)


def seeded_spec(benchmark: Benchmark, task: Task, seed: int) -> EpisodeSpec:
    """Return the episode that ``seed`` alone determines, its init state included."""
    index = seed % _INDICES
    return replace(benchmark.spec(task, index, seed - index), index=0)


def unpublished(benchmark: Benchmark, spec: EpisodeSpec) -> EpisodeSpec:
    """Return the episode with a scene that its seed places, if the benchmark can do that."""
    if spec.init_state is None or not benchmark.places_scenes:
        return spec
    return replace(spec, init_state=None, world=default_world(spec.seed, None))


def shared_starts_note(benchmark: Benchmark) -> str | None:
    """Return a note if training episodes can only start where evaluations do."""
    if benchmark.places_scenes or not has_published_starts(benchmark):
        return None
    return f"{benchmark.name}: {PUBLISHED_NOTE[:1].lower()}{PUBLISHED_NOTE[1:]}"


def has_published_starts(benchmark: Benchmark) -> bool:
    """Tell whether evaluations start from a finite list of init states."""
    return any(benchmark.spec(task, 0, 0).init_state is not None for task in benchmark.tasks())
