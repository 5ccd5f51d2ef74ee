"""An episode that was run again, beside what the journal says of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from proctor.runs.journal import EpisodeRecord

_COMPARED = ("outcome", "steps", "sum_reward", "max_reward", "success_at_end", "digest")
_COMPARED_ROUGHLY = ("outcome", "sum_reward", "max_reward")
RETURN_TOLERANCE = 0.01
"""By how much of its size a return may differ where bits are not promised: ten times what rounding
did on a GPU, whose sums of rewards moved by up to 0.1% from batches of 14 to 1 (policies.md)."""


@dataclass(frozen=True)
class Replayed:
    """One episode as it was recorded and as it came out now."""

    recorded: EpisodeRecord
    again: EpisodeRecord
    exact: bool = True
    """Whether it should be the same bit by bit; else outcome and returns count, these roughly."""

    @property
    def differences(self) -> list[str]:
        """What differs, as ``steps 91 -> 92``; empty when the episodes are the same."""
        pairs = {
            name: (getattr(self.recorded, name), getattr(self.again, name))
            for name in (_COMPARED if self.exact else _COMPARED_ROUGHLY)
        }
        return [
            f"{name} {was} -> {now}"
            for name, (was, now) in pairs.items()
            if not self._same(was, now)
        ]

    def _same(self, was: Any, now: Any) -> bool:
        if self.exact or not (isinstance(was, float) and isinstance(now, float)):
            return bool(was == now)
        return math.isclose(was, now, rel_tol=RETURN_TOLERANCE, abs_tol=1e-6)
