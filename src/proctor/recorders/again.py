"""An episode that was run again, beside what the journal says of it."""

from __future__ import annotations

from dataclasses import dataclass

from proctor.recorders.journal import EpisodeRow

_COMPARED = ("outcome", "steps", "sum_reward", "max_reward", "success_at_end", "digest")


@dataclass(frozen=True)
class Comparison:
    """One episode as it was recorded and as it came out now."""

    recorded: EpisodeRow
    again: EpisodeRow

    @property
    def differences(self) -> list[str]:
        """What differs, as ``steps 91 -> 92``; empty when the episodes are the same."""
        return [
            f"{name} {getattr(self.recorded, name)} -> {getattr(self.again, name)}"
            for name in _COMPARED
            if getattr(self.recorded, name) != getattr(self.again, name)
        ]
