"""Where episodes are played: by an engine in this process, or by those of a cluster.

An engine stays for as long as its workers can play what comes, so that simulators which are open
stay open for the camera.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from proctor.config.sections import SchedulerKind
from proctor.engine.cluster_engine import ClusterEngine, Say
from proctor.engine.cluster_messages import Cluster
from proctor.engine.engine import Engine
from proctor.engine.inference import Inference, InlineInference, ThreadInference
from proctor.engine.replicated import ReplicatedInference
from proctor.engine.scheduler import Scheduler, SchedulerLimits
from proctor.evaluation.prepared import Players
from proctor.types import EpisodeSpec

_MOST_LEASES = 10
"""How often an episode may be lost with the node that plays it."""


@dataclass(frozen=True)
class SessionRules:
    """How a session runs its episodes; none of it changes what they are."""

    scheduler: SchedulerKind
    in_process: bool
    watchdog_s: float
    draw_slots: int | None
    bounds: SchedulerLimits
    """Of the scheduler, but for what depends on how much is left to run."""


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

    def __init__(self, players: Players, rules: SessionRules) -> None:
        self._players, self._rules = players, rules
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
        rules, n_workers = self._rules, self._players.workers(len(specs))
        setup = self._players.engine_setup(
            self.policy_thread(n_workers), n_workers, in_process=rules.in_process
        )
        worker = replace(setup.worker, environment=dict(environment), draw_slots=rules.draw_slots)
        setup = replace(setup, worker=worker, watchdog_s=rules.watchdog_s)
        bounds = replace(rules.bounds, max_batch=self._players.most_at_once(n_workers), begun=begun)
        self.scheduler, self._environment = Scheduler(specs, bounds), environment
        self._engine = Engine(setup, self.scheduler)
        return self._engine

    def policy_thread(self, n_workers: int = 1) -> Inference:
        """Return what all calls into the policy go through, from the first to its end."""
        if self._inference is None:
            self._inference = self._made_inference(n_workers)
        return self._inference

    def _made_inference(self, n_workers: int) -> Inference:
        policy, action = self._players.policy, self._players.action
        if self._rules.in_process:
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
        self, join: Callable[[], Cluster], rules: SessionRules, folder: Path, say: Say
    ) -> None:
        self._join, self._rules, self._folder, self._say = join, rules, folder, say
        self._fleet: ClusterEngine | None = None
        self.scheduler = Scheduler((), SchedulerLimits(max_batch=1))

    def engine_for(
        self, specs: Sequence[EpisodeSpec], environment: Mapping[str, str], begun: int = -1
    ) -> ClusterEngine:
        """Return the fleet, which has ``specs`` to run."""
        bounds = replace(
            self._rules.bounds, max_parallel_tasks=0, max_attempts=_MOST_LEASES, begun=begun
        )
        self.scheduler = Scheduler(specs, bounds)
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
