"""The policy that looks at LIBERO as vla-eval shows it, and plays the same actions there and here.

proctor eval --policy.type=measurements.peers.same_policy:SamePolicy --policy.n_action_steps=20
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from measurements.peers.cases import LIBERO_CAMERAS
from measurements.peers.same_actions import chunk_of_actions
from proctor.features import STATE, Array, Interface
from proctor.policies.base import Batch, Policy, PolicyConfig, PolicySpec


@dataclass
class SameConfig(PolicyConfig):
    """Its one flag."""

    n_action_steps: int = field(default=1, metadata={"help": "actions per query (chunk length)"})


class SamePolicy(Policy):
    """Looks at both cameras and the state, and plays what same_actions.py says."""

    def __init__(self, config: SameConfig, interface: Interface) -> None:
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
        """Return the rule of the actions."""
        return {"actions": "PCG64 keyed by (episode index, step)"}
