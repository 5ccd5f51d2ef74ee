"""Plans episodes whose starts were not in the training data (``--eval.unseen``).

Before the plan is made, the simulators are reset once for every start that a task offers, until
enough of them are unseen. Measured starts are kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from proctor.benchmarks.base import Benchmark, interface_of
from proctor.callbacks.base import Callback
from proctor.config.evaluation import EvalConfig
from proctor.errors import UsageError
from proctor.evaluation.executor import LocalExecutor
from proctor.evaluation.rollout_context import RolloutContext
from proctor.policies.scripted.zero import ZeroConfig, ZeroPolicy
from proctor.report.run.contamination import seen_episodes
from proctor.system.caches import JsonCache, cache_folder
from proctor.trained_starts import TrainedStarts
from proctor.types import EpisodeKey, EpisodeResult, EpisodeSpec, EpisodeStart, Start, planned_start

_TRIES = 10
"""Starts that are measured for each one that is planned, at most."""
_LEAST_TRIES = 100
_CACHE, _MOST_CACHES, _MOST_ENTRIES = "starts", 200, 20_000
_TaskKey = tuple[str, int]


@dataclass(frozen=True)
class _Measured:
    """A planned episode, and the start that its reset showed."""

    spec: EpisodeSpec
    started: EpisodeStart


def with_unseen_plan(
    context: RolloutContext[EvalConfig], indices: Collection[int]
) -> RolloutContext[EvalConfig]:
    """Return the context with a plan of unseen starts, after resets of its simulators."""
    trained, config = context.trained, context.config
    if trained is None:
        raise UsageError(
            f"--eval.unseen: the policy {context.policy.spec.name} was not trained, so every start "
            "is unseen; leave the flag out",
            code="eval.untrained",
        )
    if trained.unknown:
        raise UsageError(
            f"--eval.unseen: the policy's training starts are not all known: {trained.unknown[0]}; "
            "leave the flag out, or train it with proctor train on data of proctor record",
            code="eval.unknown-starts",
        )
    repeats = config.eval.episodes_per_world
    count = (max(indices) // repeats + 1) if indices else 0
    finder = _UnseenStarts(context, trained, count)
    chosen = {task: finder.find(task) for task in _clean_tasks(context.benchmark)}
    plan = []
    for spec in context.plan:
        episode = chosen[spec.started.clean_task][spec.index // repeats]
        found = context.benchmark.spec(spec.task, episode, config.seed)
        plan.append(replace(found, index=spec.index))
    note = (
        f"--eval.unseen: {finder.seen} of {finder.looked_at} starts were in the training data; "
        "the planned episodes start from others"
    )
    return replace(context, plan=plan, plan_notes=(note,))


def _clean_tasks(benchmark: Benchmark) -> list[_TaskKey]:
    """Return the clean tasks of the benchmark's tasks, each once."""
    return list(
        dict.fromkeys(benchmark.spec(t, 0, 0).started.clean_task for t in benchmark.tasks())
    )


class _UnseenStarts:
    """Finds unseen starts of tasks, in the order of the episodes' indices."""

    def __init__(
        self, context: RolloutContext[EvalConfig], trained: TrainedStarts, count: int
    ) -> None:
        self._context, self._trained, self._count = context, trained, count
        self.seen = self.looked_at = 0

    def find(self, task: _TaskKey) -> list[int]:
        """Return the indices of the first unseen starts of a clean task."""
        every = self._candidates(task)
        unseen: list[int] = []
        looked_at = 0
        while len(unseen) < self._count and looked_at < len(every):
            more = max(self._count - len(unseen), looked_at)
            piece = every[looked_at : looked_at + more]
            looked_at += len(piece)
            found = measured_starts(self._context, task, piece)
            flags = seen_episodes(self._trained, found)
            unseen += [one.spec.index for one, flag in zip(found, flags, strict=True) if not flag]
            self.seen += sum(flags)
        self.looked_at += looked_at
        if len(unseen) < self._count:
            raise UsageError(
                f"--eval.unseen: {task[0]} task {task[1]} has {len(unseen)} unseen starts among "
                f"{looked_at}, and {self._count} are planned; lower --eval.n_episodes",
                code="eval.too-few-unseen",
            )
        return unseen[: self._count]

    def _candidates(self, task: _TaskKey) -> list[EpisodeSpec]:
        """Return the episodes with the task's different starts, in the order of their indices.

        A finite list of init states ends where it repeats.
        """
        benchmark, seed = self._context.benchmark, self._context.config.seed
        known = [t for t in benchmark.tasks() if benchmark.spec(t, 0, 0).started.clean_task == task]
        first = next((t for t in known if t.perturbation is None), known[0])
        specs: dict[str, EpisodeSpec] = {}
        for index in range(self._count * _TRIES + _LEAST_TRIES):
            spec = benchmark.spec(first, index, seed)
            name = spec.started.planned
            if name in specs:
                break
            specs[name] = spec
        return list(specs.values())


def measured_starts(
    context: RolloutContext[EvalConfig], task: _TaskKey, specs: Sequence[EpisodeSpec]
) -> list[_Measured]:
    """Return the starts of episodes of a task, from the cache or from resets of simulators.

    Episodes whose reset shows no start are left out.
    """
    cache = _cache_of(context, task)
    entries = cache.read()
    starts = _starts_in(entries)
    missing = [spec for spec in specs if str(spec.index) not in starts]
    if missing:
        fresh = _reset_all(context, missing)
        starts |= {str(key[2]): start for key, start in fresh.items()}
        added = {str(key[2]): msgspec.to_builtins(start) for key, start in fresh.items()}
        cache.write(entries | added)
        _remove_old_caches(cache.file)
    return [
        _Measured(spec, planned_start(spec, starts[str(spec.index)]))
        for spec in specs
        if str(spec.index) in starts
    ]


def _cache_of(context: RolloutContext[EvalConfig], task: _TaskKey) -> JsonCache:
    """Return the cache of a task's starts: of this benchmark, version, machine setup and seed."""
    protocol = context.protocol()
    names = ("benchmark", "versions", "packages", "environment")
    defined: dict[str, Any] = {name: protocol[name] for name in names}
    defined |= {"task": task, "seed": context.config.seed}
    key = hashlib.sha256(json.dumps(defined, sort_keys=True).encode()).hexdigest()[:32]
    return JsonCache(f"{_CACHE}/{key}", _MOST_ENTRIES)


def _starts_in(entries: Mapping[str, Any]) -> dict[str, Start]:
    try:
        return msgspec.convert(entries, dict[str, Start])
    except msgspec.ValidationError:
        return {}


def _remove_old_caches(newest: Path) -> None:
    """Bound the number of caches: the oldest are removed."""
    try:
        files = sorted(cache_folder(_CACHE).glob("*.json"), key=lambda file: file.stat().st_mtime)
        for file in files[:-_MOST_CACHES]:
            if file != newest:
                file.unlink(missing_ok=True)
    except OSError:  # another process removed one first; the next one bounds them
        return


class _StartCollector(Callback):
    """Keeps the start of every episode."""

    def __init__(self) -> None:
        self.starts: dict[EpisodeKey, Start] = {}

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Keep the start of an episode whose simulator showed one."""
        if result.start is not None:
            self.starts[result.key] = result.start


def _reset_all(
    context: RolloutContext[EvalConfig], specs: Sequence[EpisodeSpec]
) -> dict[EpisodeKey, Start]:
    """Reset a simulator for each episode, in worker processes, and return the measured starts.

    An episode of one step is replayed: workers measure starts as in every run.
    """
    benchmark = context.benchmark
    short = [replace(spec, task=replace(spec.task, max_steps=1)) for spec in specs]
    idle = np.zeros((1, benchmark.action.size), np.float32)
    collector = _StartCollector()
    with tempfile.TemporaryDirectory() as scratch:
        settings = replace(
            context.settings(),
            make_policy=None,
            policy_protocol=None,
            latency=0,
            features={},
            judged_images={},
            n_obs_steps=1,
            log_file=Path(scratch) / "workers.log",
        )
        executor = LocalExecutor(settings, ZeroPolicy(ZeroConfig(), interface_of(benchmark)))
        try:
            engine = executor.engine_for(short, context.environment)
            engine.run([collector], actions={spec.key: idle for spec in short})
        finally:
            executor.close()
    return collector.starts
