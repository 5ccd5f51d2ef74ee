"""Where episodes run: on an engine in this process, or on the engines of a cluster.

An engine is kept while its workers fit the next phase, so that open simulators are reused for
videos.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from proctor.engine.cluster.cluster_engine import ClusterEngine, LogLine
from proctor.engine.cluster.messages import Cluster
from proctor.engine.cluster.replicated import ReplicatedInference
from proctor.engine.engine import Engine
from proctor.engine.inference import Inference, InlineInference, ThreadInference
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.scheduler import Scheduler, SchedulerLimits
from proctor.evaluation.plan import max_batch, n_workers
from proctor.policies.base import Policy
from proctor.types import EpisodeSpec

_MOST_LEASES = 10
"""How often an episode may be lost with its node."""


class Executor(Protocol):
    """Runs episodes, in this process or on a cluster."""

    scheduler: Scheduler

    def engine_for(
        self, specs: Sequence[EpisodeSpec], environment: Mapping[str, str], last_begun: int = -1
    ) -> Engine | ClusterEngine:
        """Return an engine with ``specs`` queued, whose workers have these variables set."""

    def end_workers(self) -> None:
        """End all workers at once."""

    def close(self) -> None:
        """End everything; no more episodes follow."""


class LocalExecutor:
    """One engine in this process, with the policy on a thread of its own."""

    def __init__(self, settings: RolloutSettings, policy: Policy) -> None:
        self._settings, self.policy = settings, policy
        self._engine: Engine | None = None
        self._inference: Inference | None = None
        self._environment: Mapping[str, str] = {}
        self.scheduler = Scheduler((), SchedulerLimits(max_batch=1))

    def engine_for(
        self, specs: Sequence[EpisodeSpec], environment: Mapping[str, str], last_begun: int = -1
    ) -> Engine:
        """Return an engine with ``specs`` queued, reusing one with the same environment."""
        if self._engine is not None and environment == self._environment:
            self.scheduler.add(specs)
            return self._engine
        self.end_workers()
        settings = replace(self._settings, environment=dict(environment))
        workers = self.n_workers(len(specs))
        inference = self.inference(workers)
        batch = max_batch(self.policy.spec, workers)
        limits = replace(settings.limits, max_batch=batch, last_begun=last_begun)
        self.scheduler, self._environment = Scheduler(specs, limits), environment
        self._engine = Engine(settings, inference, self.scheduler, workers)
        return self._engine

    def n_workers(self, n_episodes: int) -> int:
        """Return the number of simulators for so many episodes."""
        return n_workers(self._settings, self.policy.spec, n_episodes)

    def inference(self, n_workers: int = 1) -> Inference:
        """Return the inference that all policy calls of this executor go through."""
        if self._inference is None:
            self._inference = self._make_inference(n_workers)
        return self._inference

    def _make_inference(self, n_workers: int) -> Inference:
        policy, action = self.policy, self._settings.action
        if not self._settings.flags.use_async_envs:
            return InlineInference(policy, action)
        threads = min(policy.spec.in_flight, n_workers)
        if threads == 1:
            return ThreadInference(policy, action)
        return ReplicatedInference([ThreadInference(policy, action) for _ in range(threads)])

    def wake(self) -> None:
        """Make the engine check at once whether there are more episodes."""
        engine = self._engine
        if engine is not None:
            engine.wake()

    def end_workers(self) -> None:
        """Close the engine, if there is one."""
        engine, self._engine = self._engine, None  # closed once, even if closing fails
        if engine is not None:
            engine.close()

    def close(self) -> None:
        """Close the engine and the policy."""
        with contextlib.ExitStack() as closing:
            if self._inference is not None:
                closing.callback(self._inference.close)
            closing.callback(self.end_workers)


class ClusterExecutor:
    """The engines of a cluster, which is joined before the first episode."""

    def __init__(
        self, join: Callable[[], Cluster], limits: SchedulerLimits, folder: Path, say: LogLine
    ) -> None:
        self._join, self._limits, self._folder, self._say = join, limits, folder, say
        self._cluster_engine: ClusterEngine | None = None
        self.scheduler = Scheduler((), SchedulerLimits(max_batch=1))

    def engine_for(
        self, specs: Sequence[EpisodeSpec], environment: Mapping[str, str], last_begun: int = -1
    ) -> ClusterEngine:
        """Return the cluster's engine with ``specs`` queued."""
        limits = replace(
            self._limits, max_parallel_tasks=0, max_attempts=_MOST_LEASES, last_begun=last_begun
        )
        self.scheduler = Scheduler(specs, limits)
        if self._cluster_engine is None:
            self._cluster_engine = ClusterEngine(self._join(), self._folder, self._say)
        self._cluster_engine.set_scheduler(self.scheduler, environment)
        return self._cluster_engine

    def end_workers(self) -> None:
        """End all engines of the cluster and leave it."""
        cluster_engine, self._cluster_engine = self._cluster_engine, None
        if cluster_engine is not None:
            cluster_engine.close()

    def close(self) -> None:
        """End all engines of the cluster and leave it."""
        self.end_workers()
