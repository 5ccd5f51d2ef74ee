"""Episodes counted as they end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from proctor.stats.rates import Worlds
from proctor.types import Outcome, WorldKey


@dataclass
class Counts:
    """Episodes by how they ended."""

    successes: int = 0
    failures: int = 0
    """Those that diverged included."""
    diverged: int = 0
    errors: int = 0
    worlds: Worlds = field(default_factory=Worlds)
    """From which the completed episodes started."""

    @classmethod
    def of(cls, ended: Iterable[tuple[Outcome, WorldKey]]) -> Self:
        """Count episodes that have ended before."""
        counts = cls()
        for outcome, world in ended:
            counts.add(outcome, world)
        return counts

    def add(self, outcome: Outcome, world: WorldKey) -> None:
        """Count one episode."""
        if outcome.counts:
            self.worlds.add(world)
        self.successes += outcome is Outcome.SUCCESS
        self.failures += outcome.failed
        self.diverged += outcome is Outcome.DIVERGED
        self.errors += outcome is Outcome.ERROR

    @property
    def total(self) -> int:
        """All episodes that ended, errors included."""
        return self.successes + self.failures + self.errors
