"""Which action a recorded dataset holds: the policy's, or the expert's label for the same state.

Expert labels are DAgger (Ross, Gordon and Bagnell, 2011). The policy acts, so the dataset holds the
states that the policy's own errors lead to. The expert labels each state with the correct action.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any
from zlib import crc32

import numpy as np

from proctor.types import EpisodeSpec

_SEGMENT_STEPS = 10


class ActionLabel(Enum):
    """The source of a recorded step's action."""

    PLAYED = "played"
    """The policy's action."""
    EXPERT = "expert"
    """The action of the benchmark's scripted expert in that state."""


@dataclass(frozen=True)
class ExpertLabeling:
    """How often the expert acts in episodes that it labels; picklable."""

    share: float = 0.0
    """Fraction of ten-step segments in which the expert acts instead of the policy."""

    def expert_acts(self, spec: EpisodeSpec, step: int) -> bool:
        """Return whether the expert acts at ``step``.

        The draw depends only on the seed, the task, the episode and the segment.
        """
        if self.share in (0, 1):
            return bool(self.share)
        # Segments count from 1: a trailing 0 would give the random numbers of the action noise.
        key = [spec.seed, crc32(spec.task.name.encode()), spec.index, 1 + step // _SEGMENT_STEPS]
        rng: Any = np.random.default_rng(key)
        return bool(rng.random() < self.share)
