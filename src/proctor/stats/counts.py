"""Running counts of episodes by outcome, for progress displays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, Self

from proctor.stats.anytime import AnytimeInterval, rate_interval
from proctor.stats.independent_units import UnitCounts
from proctor.stats.rates import Interval, error_bounds, rate_text
from proctor.stats.task_rates import suite_interval
from proctor.types import EpisodeKey, EpisodeStart, Outcome


class _Ended(Protocol):
    """A journal row or a result."""

    @property
    def key(self) -> EpisodeKey: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def started(self) -> EpisodeStart: ...


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
    clean_only: bool = False
    """Whether perturbed episodes are left out of the rate, since the plan has clean ones."""
    perturbed: int = 0
    """Episodes that are left out of the rate because they are perturbed."""
    units: UnitCounts = field(default_factory=UnitCounts)
    """Independent units of the completed episodes."""
    anytime: AnytimeInterval | None = None
    """Set if a stop rule monitors the rate."""

    @classmethod
    def of(
        cls,
        ended: Iterable[_Ended] = (),
        anytime: AnytimeInterval | None = None,
        *,
        clean_only: bool = False,
    ) -> Self:
        """Count episodes that have already ended."""
        counts = cls(anytime=anytime, clean_only=clean_only)
        for episode in ended:
            counts.add(episode)
        return counts

    def add(self, episode: _Ended) -> None:
        """Count one episode."""
        outcome = episode.outcome
        if self.clean_only and episode.started.perturbed:
            self.perturbed += 1
            return
        if outcome.counts:
            self.units.add(episode, outcome is Outcome.SUCCESS)
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
        return rate_interval(self.units, self.anytime)

    @property
    def bounds(self) -> Interval | None:
        """The rate if all errors had failed, or all succeeded; None without errors."""
        return None if self.ended else error_bounds(self.successes, self.completed, self.errors)

    @property
    def suite_interval(self) -> Interval | None:
        """The 95% interval of the mean rate over tasks like these; None if a stop rule decides."""
        if self.ended or self.anytime is not None:
            return None
        return suite_interval(self.units.total, self.units.tasks)

    @property
    def rate_text(self) -> str:
        """The rate with its interval, as text.

        The interval is the one in the run's final tables: anytime-valid if a stop rule monitors
        the rate.
        """
        if self.ended:
            return f"not judged n={self.ended + self.failures}"
        return rate_text(self.successes, self.completed, self.units, self.interval)

    @property
    def total(self) -> int:
        """All episodes that ended, errors included."""
        return self.successes + self.failures + self.errors + self.ended + self.perturbed
