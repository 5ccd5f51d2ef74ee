"""Uniform random actions, seeded per episode; also a load generator for measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar
from zlib import crc32

import numpy as np

from proctor.errors import UsageError
from proctor.features import ActionSpec, Array, Interface
from proctor.policies.base import Batch, Policy, PolicyConfig, PolicyPlugin, PolicySpec, flag
from proctor.policies.compatibility import check_offered
from proctor.types import EpisodeSpec


@dataclass
class RandomConfig(PolicyConfig):
    """Flags of the random policy."""

    help_group: ClassVar[str] = "Observations and actions"

    type: str = "random"
    n_action_steps: int = flag(1, "actions per inference call")
    n_obs_steps: int = flag(1, "observation steps requested per inference call (and ignored)")
    inputs: list[str] = flag(
        [], "observation keys requested from the benchmark (and ignored)", "no observations"
    )


class RandomPolicy(Policy):
    """Draws every action uniformly from the interface's range ([-1, 1] if it has none).

    A dimension with one bound gets the range of two units next to it.
    """

    def __init__(self, config: RandomConfig, interface: Interface) -> None:
        for name, value in (
            ("n_action_steps", config.n_action_steps),
            ("n_obs_steps", config.n_obs_steps),
        ):
            if value < 1:
                raise UsageError(
                    f"--policy.{name} must be at least 1, got {value}", code="flag.out-of-range"
                )
            if value > 10_000:
                raise UsageError(
                    f"--policy.{name} must be at most 10000, got {value}", code="flag.out-of-range"
                )
        check_offered(config.inputs, interface, "--policy.inputs")
        self.spec = PolicySpec(
            "random", tuple(config.inputs), config.n_obs_steps, config.n_action_steps
        )
        self._shape = (config.n_action_steps, interface.action.size)
        self._range = _finite_range(interface.action)

    def new_episode(self, spec: EpisodeSpec) -> np.random.Generator:
        """Return the episode's own random generator, keyed by seed, task and index."""
        return np.random.default_rng([spec.seed, crc32(spec.task.name.encode()), spec.index])

    def act(self, batch: Batch) -> Array:
        """Draw an action chunk for each episode from its own generator."""
        chunks = [query.state.uniform(*self._range, self._shape) for query in batch.queries]
        return np.asarray(chunks, dtype=np.float32)

    def protocol(self) -> dict[str, Any]:
        """Return the rule by which actions are drawn."""
        return {"noise": "PCG64 keyed by (seed, crc32(task name), episode index)"}


def _finite_range(action: ActionSpec) -> tuple[Array | float, Array | float]:
    low, high = (bound.astype(np.float64) for bound in action.bounds)
    bounded_above = np.isfinite(high)
    lowest = np.where(np.isfinite(low), low, np.where(bounded_above, high - 2, -1.0))
    highest = np.where(bounded_above, high, lowest + 2)
    if len(np.unique(lowest)) == len(np.unique(highest)) == 1:
        return float(lowest[0]), float(highest[0])  # numpy draws the same, six times as fast
    return lowest, highest


PLUGIN = PolicyPlugin(config=RandomConfig, make=RandomPolicy, summary="uniform random actions")
