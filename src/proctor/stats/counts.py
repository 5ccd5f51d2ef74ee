"""Running counts of episodes by outcome, for progress displays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from proctor.stats.anytime import AnytimeInterval, rate_interval
from proctor.stats.rates import Interval, WorldCounts, rate_text
from proctor.types import Outcome, WorldKey


@dataclass
class Counts:
    """Episodes by outcome, with the success rate and its interval."""

    successes: int = 0
    failures: int = 0
    """Including diverged episodes."""
    diverged: int = 0
    errors: int = 0
    ended: int = 0
    """Episodes of environments that do not define success."""
    worlds: WorldCounts = field(default_factory=WorldCounts)
    """Initial worlds of the completed episodes."""
    anytime: AnytimeInterval | None = None
    """Set if a stop rule monitors the rate."""
    first_successes: int = 0
    """Successes if only the first completed episode of each world counts."""

    @classmethod
    def of(
        cls, ended: Iterable[tuple[Outcome, WorldKey]] = (), anytime: AnytimeInterval | None = None
    ) -> Self:
        """Count episodes that have already ended."""
        counts = cls(anytime=anytime)
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
        """Episodes that count in the rate."""
        return self.successes + self.failures

    @property
    def interval(self) -> Interval | None:
        """The rate's 95% interval; None without a rate."""
        if self.ended:
            return None
        first = self.first_successes, self.worlds.distinct
        return rate_interval(self.successes, self.completed, self.worlds, first, self.anytime)

    @property
    def rate_text(self) -> str:
        """The rate with its interval, as text.

        The interval is the one in the run's final tables: anytime-valid if a stop rule monitors
        the rate.
        """
        if self.ended:
            return f"not judged n={self.ended + self.failures}"
        return rate_text(self.successes, self.completed, self.worlds, self.interval)

    @property
    def total(self) -> int:
        """All episodes that ended, errors included."""
        return self.successes + self.failures + self.errors + self.ended
