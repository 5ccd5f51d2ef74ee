"""The policy that does nothing: a floor to compare with, and the cheapest load there is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proctor.features import Array, Interface
from proctor.policies.base import Batch, Policy, PolicyConfig, PolicyPlugin, PolicySpec


@dataclass
class ZeroConfig(PolicyConfig):
    """Flags of the zero policy: none of its own."""

    type: str = "zero"


class ZeroPolicy(Policy):
    """Returns zeros and looks at nothing."""

    spec = PolicySpec("zero")

    def __init__(self, config: ZeroConfig, interface: Interface) -> None:
        self._size = interface.action.size

    def act(self, batch: Batch) -> Array:
        """Return zeros [B, 1, A]."""
        return np.zeros((len(batch.queries), 1, self._size), dtype=np.float32)


PLUGIN = PolicyPlugin(config=ZeroConfig, make=ZeroPolicy, summary="always zero")
