"""The settings that a worker reads, as plain data that another interpreter can unpickle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.benchmarks.base import SimFactory, WorkerInterpreter
from proctor.features import ActionSpec, Feature, Interface
from proctor.system import clock

if TYPE_CHECKING:
    from proctor.policies.base import Policy


@dataclass(frozen=True)
class WorkerSettings:
    """How a worker runs episodes. Picklable: every worker process receives it unchanged."""

    make_benchmark: Callable[[], SimFactory]
    action: ActionSpec
    make_policy: Callable[[Interface], Policy] | None = None
    """Makes the policy of a worker; None: the policy runs in the engine's process."""
    policy_protocol: dict[str, Any] | None = None
    """The protocol that the policy of a worker must report: that of the run's record."""
    interpreter: WorkerInterpreter | None = None
    """Interpreter that worker processes run in; None: this one."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of worker processes."""
    log_file: Path | None = None
    """Where worker processes write stdout and stderr; None: they discard it."""
    features: dict[str, Feature] = field(default_factory=dict)
    """The policy's inputs, and no other feature: only these are rendered and shared."""
    n_obs_steps: int = 1
    start_keys: tuple[str, ...] = ()
    """Observed at the start of an episode if its simulator shows no state."""
    latency: int = 0
    """Steps that the simulation continues during inference."""
    judged_images: dict[str, Feature] = field(default_factory=dict)
    """Images of an episode's last state that a judge needs; empty: no judge."""
    clock_offset: float = field(default_factory=clock.offset)
    """Offset of the session's clock, which worker processes follow."""

    def for_worker(self) -> WorkerSettings:
        """Return these settings without those that only the engine reads."""
        return WorkerSettings(
            **{part.name: getattr(self, part.name) for part in fields(WorkerSettings)}
        )
