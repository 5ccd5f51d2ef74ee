"""Where episodes are played: by an engine in this process, or by those of a cluster.

An engine stays for as long as its workers can play what comes, so that simulators which are open
stay open for the camera.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from proctor.engine.cluster_engine import ClusterEngine, Say
from proctor.engine.cluster_messages import Cluster
from proctor.engine.engine import Engine
from proctor.engine.inference import Inference, InlineInference, ThreadInference
from proctor.engine.replicated import ReplicatedInference
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.scheduler import Scheduler, SchedulerLimits
from proctor.evaluation.plan import max_batch, n_workers
from proctor.policies.base import Policy
from proctor.types import EpisodeSpec

_MOST_LEASES = 10
"""How often an episode may be lost with the node that plays it."""


class Executor(Protocol):
    """Where episodes are played."""

    scheduler: Scheduler

    def engine_for(
        self, specs: Sequence[EpisodeSpec], environment: Mapping[str, str], begun: int = -1
    ) -> Engine | ClusterEngine:
        """Return what has ``specs`` to run, by workers that have these variables set."""

    def end_workers(self) -> None:
        """End all workers, at once."""

    def close(self) -> None:
        """End everything: nothing more will be played."""


class LocalExecutor:
    """One engine in this process, with the policy on a thread of its own."""

    def __init__(self, settings: RolloutSettings, policy: Policy) -> None:
        self._settings, self.policy = settings, policy
        self._engine: Engine | None = None
        self._inference: Inference | None = None
        self._environment: Mapping[str, str] = {}
        self.scheduler = Scheduler((), SchedulerLimits(max_batch=1))

    def engine_for(
        self, specs: Sequence[EpisodeSpec], environment: Mapping[str, str], begun: int = -1
    ) -> Engine:
        """Return an engine that has ``specs`` to run: the one there is, if its workers can."""
        if self._engine is not None and environment == self._environment:
            self.scheduler.add(specs)
            return self._engine
        self.end_workers()
        settings = replace(self._settings, environment=dict(environment))
        workers = self.n_workers(len(specs))
        inference = self.policy_thread(workers)
        batch = max_batch(self.policy.spec, workers)
        limits = replace(settings.limits, max_batch=batch, begun=begun)
        self.scheduler, self._environment = Scheduler(specs, limits), environment
        self._engine = Engine(settings, inference, self.scheduler, workers)
        return self._engine

    def n_workers(self, n_episodes: int) -> int:
        """Return how many simulators roll out so many episodes."""
        return n_workers(self._settings, self.policy.spec, n_episodes)

    def policy_thread(self, n_workers: int = 1) -> Inference:
        """Return what all calls into the policy go through, from the first to its end."""
        if self._inference is None:
            self._inference = self._made_inference(n_workers)
        return self._inference

    def _made_inference(self, n_workers: int) -> Inference:
        policy, action = self.policy, self._settings.action
        if not self._settings.flags.use_async_envs:
            return InlineInference(policy, action)
        threads = min(policy.spec.in_flight, n_workers)
        if threads == 1:
            return ThreadInference(policy, action)
        return ReplicatedInference([ThreadInference(policy, action) for _ in range(threads)])

    def wake(self) -> None:
        """Have the engine, if there is one, look at once whether there is more to run."""
        engine = self._engine
        if engine is not None:
            engine.wake()

    def end_workers(self) -> None:
        """End the engine, if there is one."""
        engine, self._engine = self._engine, None  # closed once, also when that fails
        if engine is not None:
            engine.close()

    def close(self) -> None:
        """End the engine and close the policy."""
        with contextlib.ExitStack() as closing:
            if self._inference is not None:
                closing.callback(self._inference.close)
            closing.callback(self.end_workers)


class ClusterExecutor:
    """The engines of a cluster, which is joined when the first episode is to be played."""

    def __init__(
        self, join: Callable[[], Cluster], limits: SchedulerLimits, folder: Path, say: Say
    ) -> None:
        self._join, self._limits, self._folder, self._say = join, limits, folder, say
        self._fleet: ClusterEngine | None = None
        self.scheduler = Scheduler((), SchedulerLimits(max_batch=1))

    def engine_for(
        self, specs: Sequence[EpisodeSpec], environment: Mapping[str, str], begun: int = -1
    ) -> ClusterEngine:
        """Return the fleet, which has ``specs`` to run."""
        limits = replace(self._limits, max_parallel_tasks=0, max_attempts=_MOST_LEASES, begun=begun)
        self.scheduler = Scheduler(specs, limits)
        if self._fleet is None:
            self._fleet = ClusterEngine(self._join(), self._folder, self._say)
        self._fleet.has(self.scheduler, environment)
        return self._fleet

    def end_workers(self) -> None:
        """End all engines of the cluster, and leave it."""
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            fleet.close()

    def close(self) -> None:
        """End all engines of the cluster, and leave it."""
        self.end_workers()
