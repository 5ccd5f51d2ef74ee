"""The settings of a rollout: everything that workers, engine and scheduler need, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.benchmarks.base import Benchmark
from proctor.config.sections import RolloutConfig
from proctor.engine.scheduler import SchedulerLimits
from proctor.features import ActionSpec, Feature, Interface
from proctor.policies.base import Policy
from proctor.system import clock


@dataclass(frozen=True)
class RolloutSettings:
    """How episodes are rolled out. Picklable: every worker process receives it unchanged.

    ``flags`` is the whole ``--eval.*`` section. A worker therefore reads a new flag of that section
    without further plumbing.
    """

    make_benchmark: Callable[[], Benchmark]
    action: ActionSpec
    make_policy: Callable[[Interface], Policy] | None = None
    """Makes the policy of a worker; None: the policy runs in the engine's process."""
    policy_protocol: dict[str, Any] | None = None
    """The protocol that the policy of a worker must report: that of the run's record."""
    worker_python: str | None = None
    """Interpreter that worker processes run in; None: this one."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of worker processes."""
    log_file: Path | None = None
    """Where worker processes write stdout and stderr; None: they discard it."""
    flags: RolloutConfig = field(default_factory=RolloutConfig)
    """The ``--eval.*`` flags: batch size, processes, watchdog, retries, latency."""
    limits: SchedulerLimits = field(default_factory=lambda: SchedulerLimits(max_batch=1))
    """The scheduler's limits, except for those that depend on how much is left to run."""
    features: dict[str, Feature] = field(default_factory=dict)
    """The policy's inputs, and no other feature: only these are rendered and shared."""
    n_obs_steps: int = 1
    judged_images: dict[str, Feature] = field(default_factory=dict)
    """Images of an episode's last state that a judge needs; empty: no judge."""
    cores: int | None = None
    """Cores that simulators may use; None: all cores of this process."""
    clock_offset: float = field(default_factory=clock.offset)
    """Offset of the session's clock, which worker processes follow."""
