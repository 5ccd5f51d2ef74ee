"""A policy that reads LIBERO's observations as vla-eval does and executes fixed actions.

proctor eval --policy.type=measurements.peers.fixed_action_policy:FixedActionPolicy
    --policy.n_action_steps=20
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from measurements.peers.cases import LIBERO_CAMERAS
from measurements.peers.fixed_actions import chunk_of_actions
from proctor.features import STATE, Array, Interface
from proctor.policies.base import Batch, Policy, PolicyConfig, PolicySpec


@dataclass
class FixedActionConfig(PolicyConfig):
    """Its only flag."""

    n_action_steps: int = field(default=1, metadata={"help": "actions per query (chunk length)"})


class FixedActionPolicy(Policy):
    """Reads both cameras and the state, and returns the actions of fixed_actions.py."""

    def __init__(self, config: FixedActionConfig, interface: Interface) -> None:
        self._length = config.n_action_steps
        self.spec = PolicySpec("same", (*LIBERO_CAMERAS, STATE), n_action_steps=self._length)

    def act(self, batch: Batch) -> Array:
        """Return the chunk of each episode's step."""
        return np.stack(
            [
                chunk_of_actions(query.spec.index, query.step, self._length)
                for query in batch.queries
            ]
        )

    def protocol(self) -> dict[str, Any]:
        """Return the definition of the actions."""
        return {"actions": "PCG64 keyed by (episode index, step)"}
