"""Episodes counted as they end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from proctor.stats.anytime import AnytimeInterval, rate_interval
from proctor.stats.rates import Interval, WorldCounts, rate_text
from proctor.types import Outcome, WorldKey


@dataclass
class Counts:
    """Episodes by how they ended."""

    successes: int = 0
    failures: int = 0
    """Those that diverged included."""
    diverged: int = 0
    errors: int = 0
    ended: int = 0
    """Of which nobody says whether they are successes."""
    worlds: WorldCounts = field(default_factory=WorldCounts)
    """From which the completed episodes started."""
    watch: AnytimeInterval | None = None
    """How a rule watches the rate, if one does which may stop the run."""
    first_successes: int = 0
    """Where only the first completed episode of every world counts."""

    @classmethod
    def of(
        cls, ended: Iterable[tuple[Outcome, WorldKey]] = (), watch: AnytimeInterval | None = None
    ) -> Self:
        """Count episodes that have ended before."""
        counts = cls(watch=watch)
        for outcome, world in ended:
            counts.add(outcome, world)
        return counts

    def add(self, outcome: Outcome, world: WorldKey) -> None:
        """Count one episode."""
        if outcome.counts:
            before = self.worlds.distinct
            self.worlds.add(world)
            is_first = self.worlds.distinct > before
            self.first_successes += is_first and outcome is Outcome.SUCCESS
        self.successes += outcome is Outcome.SUCCESS
        self.failures += outcome.failed
        self.diverged += outcome is Outcome.DIVERGED
        self.errors += outcome is Outcome.ERROR
        self.ended += outcome is Outcome.ENDED

    @property
    def completed(self) -> int:
        """Episodes that are part of the rate."""
        return self.successes + self.failures

    @property
    def interval(self) -> Interval | None:
        """The rate's 95% interval; None without a rate."""
        if self.ended:
            return None
        first = self.first_successes, self.worlds.distinct
        return rate_interval(self.successes, self.completed, self.worlds, first, self.watch)

    @property
    def rate(self) -> str:
        """The rate with its interval, as text: one that holds at any moment where a rule watches.

        The same interval that the run's tables have in the end.
        """
        if self.ended:
            return f"not judged n={self.ended + self.failures}"
        return rate_text(self.successes, self.completed, self.worlds, self.interval)

    @property
    def total(self) -> int:
        """All episodes that ended, errors included."""
        return self.successes + self.failures + self.errors + self.ended
