"""From a benchmark and a number of episodes to the list of episodes, and what of it is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from proctor.benchmarks.base import Benchmark
from proctor.engine.rollout_settings import RolloutSettings
from proctor.errors import UsageError
from proctor.policies.base import Placement, PolicySpec
from proctor.runs.journal import EpisodeRecord
from proctor.runs.records import PlannedTask
from proctor.system.platform_info import WORKER_MB, usable_cores, usable_memory_bytes
from proctor.types import MAX_EPISODES, EpisodeSpec


def make_plan(benchmark: Benchmark, indices: Collection[int], seed: int) -> list[EpisodeSpec]:
    """List the episodes with these indices of every task, task by task. Creates no simulator.

    Raises:
        UsageError: there would be more of them than a run can hold.
    """
    tasks = benchmark.tasks()
    if len(tasks) * len(indices) > MAX_EPISODES:
        raise UsageError(
            f"{len(tasks)} tasks with {len(indices)} episodes each are more than a run holds "
            f"({MAX_EPISODES:,}); ask for fewer, or for fewer tasks with --env.task"
        )
    indices = sorted(set(indices))
    return [benchmark.spec(task, index, seed) for task in tasks for index in indices]


def planned_tasks(plan: Sequence[EpisodeSpec]) -> list[PlannedTask]:
    """Return the tasks of a plan in its order, each with the number of its episodes."""
    episodes = Counter(spec.task for spec in plan)
    return [
        PlannedTask(task.suite, task.task_id, task.name, task.instruction, task.max_steps, n)
        for task, n in episodes.items()
    ]


class InferencePlace(Enum):
    """Where the actions of a run are found, which decides how many simulators suit it."""

    BESIDE = "in the workers"
    LIGHT = "in the engine, by next to no work"
    CPU = "in the engine, by a network on the CPU"
    ACCELERATOR = "in the engine, by a network on an accelerator"


_PER_CORE = {
    # Nobody else needs a core: the engine hears of whole episodes only.
    InferencePlace.BESIDE: 1.0,
    # The engine's own core is busy with requests when simulators are quick; they wait then.
    InferencePlace.LIGHT: 1.0,
    # Simulators wait while the network computes with all cores, and the other way round.
    InferencePlace.CPU: 1.0,
    # Most of them wait, for the accelerator to draw or to think: 24 on 16 cores fill its batches.
    InferencePlace.ACCELERATOR: 1.5,
}
_MOST = 64
"""Past the point where one parent keeps up with simulators that render."""


@dataclass(frozen=True)
class WorkerLoad:
    """What decides how many simulators are best."""

    thinking: InferencePlace
    cores: int
    memory_bytes: int


def best_simulators(load: WorkerLoad) -> int:
    """Return how many simulators keep this machine busy without being in each other's way.

    Two at least where the engine thinks, so that one moves while the other is thought for.
    ``python -m measurements engine workers`` compares it with fixed numbers.
    """
    least = 1 if load.thinking is InferencePlace.BESIDE else 2
    fitting = load.memory_bytes // (WORKER_MB * 2**20)
    return max(1, min(max(least, round(_PER_CORE[load.thinking] * load.cores)), fitting, _MOST))


def workers_for(batch_size: int, n_episodes: int, load: WorkerLoad) -> int:
    """Return how many simulators to run at once: as asked, or the best number when 0.

    Never more than there are episodes, never fewer than one.
    """
    return max(1, min(batch_size or best_simulators(load), n_episodes))


def n_workers(settings: RolloutSettings, policy: PolicySpec, n_episodes: int) -> int:
    """Return how many simulators of this machine run ``n_episodes`` episodes of ``policy``."""
    cores = settings.cores or usable_cores()
    load = WorkerLoad(_inference_place(policy), cores, usable_memory_bytes())
    return workers_for(settings.flags.batch_size, n_episodes, load)


def _inference_place(policy: PolicySpec) -> InferencePlace:
    if policy.placement is Placement.WORKER:
        return InferencePlace.BESIDE
    if policy.computes_on is None:
        return InferencePlace.LIGHT
    return InferencePlace.CPU if policy.computes_on == "cpu" else InferencePlace.ACCELERATOR


def max_batch(policy: PolicySpec, n_workers: int) -> int:
    """Return how many requests of ``n_workers`` simulators one inference call may hold."""
    if policy.in_flight > 1:  # each call holds one request, on a thread of its own
        return 1
    return min(n_workers, policy.rows_at_once or n_workers)


_FOR_EACH_WORKER = 3
_FOR_THE_REST = 64


def descriptors_for(workers: int) -> int:
    """Return how many descriptors a run with so many workers takes, with some to spare."""
    return _FOR_THE_REST + _FOR_EACH_WORKER * workers


def workers_within(descriptors: int) -> int:
    """Return how many workers so many descriptors allow."""
    return max(0, (descriptors - _FOR_THE_REST) // _FOR_EACH_WORKER)


@dataclass(frozen=True)
class RemainingEpisodes:
    """What is left to run of a plan."""

    specs: list[EpisodeSpec]
    begun: int
    """The last index of which an earlier session has ended an episode; -1: none."""


def check_planned(plan: list[EpisodeSpec], done: Sequence[EpisodeRecord], path: Path) -> None:
    """Refuse to go on with a folder that holds other episodes than those planned.

    Raises:
        UsageError: naming the first.
    """
    planned = {spec.key: spec for spec in plan}
    extra = [row for row in done if row.key not in planned]
    if extra:
        first = min(extra, key=lambda row: row.key)
        raise UsageError(
            f"--resume: {path} holds {len(extra)} episodes that are not planned now, as episode "
            f"{first.episode_index} of {first.task} in {first.suite}; tasks are added to those of "
            "the run: name them too, and at least as many --eval.n_episodes"
        )
    for row in done:
        found = row.disagreement(planned[row.key])
        if found is not None:
            raise UsageError(
                f"--resume: {row.key} in {path} is another episode than the one planned now "
                f"({found}); its journal was changed or mixed up: choose another --output_dir"
            )


def remaining_episodes(
    plan: list[EpisodeSpec], done: Sequence[EpisodeRecord], *, decided: bool
) -> RemainingEpisodes:
    """Return the episodes to run: once a rule has decided, only those of rounds that have begun.

    An earlier session that ended amid its rounds has left the quick episodes of them, which are
    the successes. What errored is tried again: the cause may be mended.
    """
    sound = {row.key for row in done if row.outcome.counts}
    begun = max((row.episode_index for row in done), default=-1)
    missing = (spec for spec in plan if spec.key not in sound)
    return RemainingEpisodes(
        [spec for spec in missing if spec.index <= begun or not decided], begun
    )
