"""The list of planned episodes, the remaining ones, and the number of simulators to run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from proctor.benchmarks.base import Benchmark
from proctor.engine.rollout_settings import RolloutSettings
from proctor.errors import UsageError
from proctor.policies.base import Placement, PolicySpec
from proctor.runs.journal import EpisodeRecord
from proctor.runs.records import PlannedTask
from proctor.system.platform.platform_info import WORKER_MB, usable_cores, usable_memory_bytes
from proctor.types import MAX_EPISODES, EpisodeSpec


def make_plan(
    benchmark: Benchmark, indices: Collection[int], seed: int, repeats: int = 1
) -> list[EpisodeSpec]:
    """List the episodes with these indices of every task, task by task. Creates no simulator.

    Every ``repeats`` consecutive episodes share an initial state.
    """
    tasks = benchmark.tasks()
    if len(tasks) * len(indices) > MAX_EPISODES:
        raise UsageError(
            f"{len(tasks)} tasks with {len(indices)} episodes each are more than a run holds "
            f"({MAX_EPISODES:,}); ask for fewer, or for fewer tasks with --env.task",
            code="run.too-many-episodes",
        )
    indices = sorted(set(indices))
    return [
        replace(benchmark.spec(task, index // repeats, seed), index=index)
        for task in tasks
        for index in indices
    ]


def planned_tasks(plan: Sequence[EpisodeSpec]) -> list[PlannedTask]:
    """Return the tasks of a plan in its order, each with its number of episodes."""
    episodes = Counter(spec.task for spec in plan)
    return [
        PlannedTask(
            task.suite,
            task.task_id,
            task.name,
            task.instruction,
            task.max_steps,
            n,
            task.perturbation,
        )
        for task, n in episodes.items()
    ]


class InferencePlacement(Enum):
    """Where inference runs, which decides how many simulators suit it."""

    BESIDE = "in the workers"
    LIGHT = "in the engine, by next to no work"
    CPU = "in the engine, by a network on the CPU"
    ACCELERATOR = "in the engine, by a network on an accelerator"


_PER_CORE = {
    # The engine needs no core: it receives whole episodes only.
    InferencePlacement.BESIDE: 1.0,
    # The engine's core is busy with requests if simulators are fast; they wait then.
    InferencePlacement.LIGHT: 1.0,
    # Simulators wait while the network uses all cores, and the network waits for simulators.
    InferencePlacement.CPU: 1.0,
    # Most simulators wait for the accelerator: 24 on 16 cores fill its batches.
    InferencePlacement.ACCELERATOR: 1.5,
}
_MOST = 64
"""More simulators that render than one engine can serve."""


@dataclass(frozen=True)
class WorkerLoad:
    """What decides the best number of simulators."""

    placement: InferencePlacement
    cores: int
    memory_bytes: int


def best_simulators(load: WorkerLoad) -> int:
    """Return how many simulators keep this machine busy without competing for it.

    At least two if inference runs in the engine: one steps while the other waits for actions.
    ``python -m measurements engine workers`` compares the number with fixed ones.
    """
    least = 1 if load.placement is InferencePlacement.BESIDE else 2
    fitting = load.memory_bytes // (WORKER_MB * 2**20)
    return max(1, min(max(least, round(_PER_CORE[load.placement] * load.cores)), fitting, _MOST))


def workers_for(batch_size: int, n_episodes: int, load: WorkerLoad) -> int:
    """Return the number of simulators: ``batch_size``, or the best number if that is 0.

    Never more than there are episodes, never fewer than one.
    """
    return max(1, min(batch_size or best_simulators(load), n_episodes))


def n_workers(settings: RolloutSettings, policy: PolicySpec, n_episodes: int) -> int:
    """Return how many simulators of this machine run ``n_episodes`` episodes of ``policy``."""
    cores = settings.cores or usable_cores()
    load = WorkerLoad(_inference_place(policy), cores, usable_memory_bytes())
    return workers_for(settings.flags.batch_size, n_episodes, load)


def _inference_place(policy: PolicySpec) -> InferencePlacement:
    if policy.placement is Placement.WORKER:
        return InferencePlacement.BESIDE
    if policy.device_type is None:
        return InferencePlacement.LIGHT
    return InferencePlacement.CPU if policy.device_type == "cpu" else InferencePlacement.ACCELERATOR


def max_batch(policy: PolicySpec, n_workers: int) -> int:
    """Return how many requests of ``n_workers`` simulators one inference call may hold."""
    if policy.in_flight > 1:  # each call holds one request, on a thread of its own
        return 1
    return min(n_workers, policy.max_rows or n_workers)


_FOR_EACH_WORKER = 3
_FOR_THE_REST = 64


def descriptors_for(workers: int) -> int:
    """Return how many file descriptors a run with ``workers`` workers needs, with a margin."""
    return _FOR_THE_REST + _FOR_EACH_WORKER * workers


def workers_within(descriptors: int) -> int:
    """Return how many workers so many file descriptors allow."""
    return max(0, (descriptors - _FOR_THE_REST) // _FOR_EACH_WORKER)


@dataclass(frozen=True)
class RemainingEpisodes:
    """The remaining episodes of a plan."""

    specs: list[EpisodeSpec]
    last_begun: int
    """The last index of which an earlier session ended an episode; -1: none."""


def check_planned(plan: list[EpisodeSpec], done: Sequence[EpisodeRecord], path: Path) -> None:
    """Refuse to resume a folder that holds other episodes than the planned ones."""
    planned = {spec.key: spec for spec in plan}
    extra = [row for row in done if row.key not in planned]
    if extra:
        first = min(extra, key=lambda row: row.key)
        raise UsageError(
            f"--resume: {path} holds {len(extra)} episodes that are not planned now, as episode "
            f"{first.episode_index} of {first.task} in {first.suite}; tasks are added to those of "
            "the run: name them too, and at least as many --eval.n_episodes",
            code="run.unplanned-episode",
        )
    for row in done:
        found = row.disagreement(planned[row.key])
        if found is not None:
            raise UsageError(
                f"--resume: {row.key} in {path} is another episode than the one planned now "
                f"({found}); its journal was changed or mixed up: choose another --output_dir",
                code="run.episode-mismatch",
            )


def remaining_episodes(
    plan: list[EpisodeSpec], done: Sequence[EpisodeRecord], *, decided: bool
) -> RemainingEpisodes:
    """Return the episodes to run; once a stop rule has decided, only those of begun rounds.

    An earlier session that was interrupted in a round holds its quick episodes only, which are
    mostly successes. Errored episodes run again: their cause may be fixed.
    """
    sound = {row.key for row in done if row.outcome.counts}
    last_begun = max((row.episode_index for row in done), default=-1)
    missing = (spec for spec in plan if spec.key not in sound)
    return RemainingEpisodes(
        [spec for spec in missing if spec.index <= last_begun or not decided], last_begun
    )
