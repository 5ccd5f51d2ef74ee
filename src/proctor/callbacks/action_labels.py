"""Whose actions a dataset holds: those of who plays, or what the expert would have done there.

The second is DAgger (Ross, Gordon and Bagnell, 2011): a policy learns from its own mistakes, since
it is shown what to do in the states that it leads itself into.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any
from zlib import crc32

import numpy as np

from proctor.types import EpisodeSpec

_STRETCH_STEPS = 10


class ActionLabel(Enum):
    """What is recorded as the action of a step."""

    PLAYED = "played"
    """What the policy wanted."""
    EXPERT = "expert"
    """What the benchmark's scripted expert would have done in that state."""


@dataclass(frozen=True)
class ExpertLabeling:
    """How the expert takes part in episodes that it labels; picklable."""

    share: float = 0.0
    """Of stretches of ten steps: those that the expert plays in the policy's place."""

    def expert_acts(self, spec: EpisodeSpec, step: int) -> bool:
        """Whether the expert plays ``step``: by seed, task, episode and stretch, nothing else."""
        if self.share in (0, 1):
            return bool(self.share)
        # From 1: a key that ends in 0 draws as the one without it does, which is the noise's.
        key = [spec.seed, crc32(spec.task.name.encode()), spec.index, 1 + step // _STRETCH_STEPS]
        rng: Any = np.random.default_rng(key)
        return bool(rng.random() < self.share)
