"""The policy that does nothing: a floor to compare with, and the cheapest load there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor.features import Array, Interface
from proctor.policies.base import Batch, Placement, PolicyConfig, PolicyPlugin
from proctor.types import EpisodeSpec


@dataclass
class ZeroConfig(PolicyConfig):
    """Flags of the zero policy: none of its own."""

    type: str = "zero"


class ZeroPolicy:
    """Returns zeros and looks at nothing."""

    name = "zero"
    inputs: tuple[str, ...] = ()
    n_obs_steps = 1
    n_action_steps = 1
    placement = Placement.ENGINE

    def __init__(self, config: ZeroConfig, interface: Interface) -> None:
        self._size = interface.action.size

    def new_episode(self, spec: EpisodeSpec) -> None:
        """Keep nothing."""

    def act(self, batch: Batch) -> Array:
        """Return zeros [B, 1, A]."""
        return np.zeros((len(batch.queries), 1, self._size), dtype=np.float32)

    def protocol(self) -> dict[str, Any]:
        """Nothing defines an episode of this policy."""
        return {}


PLUGIN = PolicyPlugin(config=ZeroConfig, make=ZeroPolicy, summary="always zero")
