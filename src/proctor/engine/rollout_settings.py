"""The settings of a rollout: everything that workers, engine and scheduler need, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from proctor.benchmarks.base import Benchmark
from proctor.config.sections.evaluation import RolloutConfig
from proctor.engine.scheduler import SchedulerLimits
from proctor.engine.worker.settings import WorkerSettings


@dataclass(frozen=True)
class RolloutSettings(WorkerSettings):
    """How episodes are rolled out: the workers' settings, and those of engine and scheduler."""

    make_benchmark: Callable[[], Benchmark]
    flags: RolloutConfig = field(default_factory=RolloutConfig)
    """The ``--eval.*`` flags: batch size, processes, watchdog, retries."""
    limits: SchedulerLimits = field(default_factory=lambda: SchedulerLimits(max_batch=1))
    """The scheduler's limits, except for those that depend on how much is left to run."""
    cores: int | None = None
    """Cores that simulators may use; None: all cores of this process."""
