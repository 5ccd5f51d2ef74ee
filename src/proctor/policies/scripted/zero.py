"""Zero actions: a lower bound to compare with, and the cheapest load for measurements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proctor.features import Array, Interface
from proctor.policies.base import Batch, Policy, PolicyConfig, PolicyPlugin, PolicySpec


@dataclass
class ZeroConfig(PolicyConfig):
    """Flags of the zero policy; it adds none."""

    type: str = "zero"


class ZeroPolicy(Policy):
    """Returns zeros and takes no observations."""

    spec = PolicySpec("zero")

    def __init__(self, config: ZeroConfig, interface: Interface) -> None:
        self._size = interface.action.size

    def act(self, batch: Batch) -> Array:
        """Return zeros [B, 1, A]."""
        return np.zeros((len(batch.queries), 1, self._size), dtype=np.float32)


PLUGIN = PolicyPlugin(config=ZeroConfig, make=ZeroPolicy, summary="always zero", is_trained=False)
