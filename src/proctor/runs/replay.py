"""Compare an episode that was run again with its journal record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from proctor.runs.journal import EpisodeRecord

_COMPARED = ("outcome", "steps", "sum_reward", "max_reward", "success_at_end", "digest")
_COMPARED_ROUGHLY = ("outcome", "sum_reward", "max_reward")
RETURN_TOLERANCE = 0.01
"""Relative difference of returns that is allowed where bits are not reproducible. Ten times what
rounding caused on a GPU: sums of rewards moved by up to 0.1% from batch size 14 to 1 (policies.md).
"""


@dataclass(frozen=True)
class EpisodeReplay:
    """One episode as it was recorded and as it was replayed."""

    recorded: EpisodeRecord
    replayed: EpisodeRecord
    exact: bool = True
    """Whether all bits must agree; otherwise only the outcome and, within a tolerance, returns."""

    @property
    def differences(self) -> list[str]:
        """The differences, such as ``steps 91 -> 92``; empty if the episodes are the same."""
        pairs = {
            name: (getattr(self.recorded, name), getattr(self.replayed, name))
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
