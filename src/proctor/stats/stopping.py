"""Stop rules: sequential tests that end a run early and stay valid although it stops early.

Two effects would bias a run that stops early. If tasks run one after the other, the first tasks are
over-represented. Among parallel episodes, successes end sooner than failures. Therefore
``EarlyStopping`` receives episodes in any order and passes them to its rules in rounds: episode 0
of every task when all of those have ended, then episode 1 of every task, and so on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from proctor.errors import UsageError, did_you_mean
from proctor.stats.anytime import anytime_interval
from proctor.stats.independent_units import (
    NamedStart,
    UnitCounts,
    UnitIndex,
    may_pair,
    named_start,
)
from proctor.types import EpisodeKey, EpisodeStart, Outcome

NEVER = "never"


class EpisodeOutcome(NamedTuple):
    """The outcome of an episode, and where it started."""

    key: EpisodeKey
    started: EpisodeStart
    outcome: Outcome


Round = Sequence[EpisodeOutcome]
"""The episodes of one index, one of every task."""


def clean_episodes(episodes: Iterable[EpisodeOutcome]) -> list[EpisodeOutcome]:
    """Return the clean episodes, which a rate is about; all, if every one is perturbed."""
    episodes = list(episodes)
    return [one for one in episodes if not one.started.perturbed] or episodes


class StopRule(Protocol):
    """Decides when a run may stop."""

    def on_round_end(self, episodes: Round) -> None:
        """Receive the episodes of one index; rounds come in order, each once."""

    @property
    def decision(self) -> str | None:
        """Why the run may stop; None: continue."""


class CIWidth:
    """Stops when the 95% interval of all episodes, or of every task, is narrow enough.

    The interval is anytime-valid (``anytime``), since it is checked after every round. Each
    independent unit counts once. Over all episodes, perturbed ones do not count if clean ones do.
    """

    def __init__(self, width: float, *, per_task: bool = False) -> None:
        self._width = width
        self._per_task = per_task
        self._counts: dict[tuple[str, int] | None, UnitCounts] = {}

    def on_round_end(self, episodes: Round) -> None:
        """Count the round."""
        for episode in episodes if self._per_task else clean_episodes(episodes):
            cell = episode.key[:2] if self._per_task else None
            counts = self._counts.setdefault(cell, UnitCounts())
            if episode.outcome.counts:
                counts.add(episode, episode.outcome is Outcome.SUCCESS)

    @property
    def decision(self) -> str | None:
        """The width of the widest interval, once it is below the limit."""
        firsts = [counts.first for counts in self._counts.values()]
        intervals = [anytime_interval(k, n, self._width) for k, n in firsts]
        widest = max((1.0 if i is None else i[1] - i[0] for i in intervals), default=1.0)
        if widest >= self._width:
            return None
        name = "task_ci_width" if self._per_task else "ci_width"
        n = sum(n for _, n in firsts)
        return f"{name} {widest:.4f} < {self._width:g} after {n} episodes"


class PairedTest:
    """Stops when B, the current run, is significantly better or worse than A on the same episodes.

    It is a betting test. Of a capital of 1, the share s is bet on B whenever only one of the two
    solves an episode. The capital, averaged over all s in [0, 1], after k wins of B and m of A is

        E = integral of (1 + s)^k (1 - s)^m ds = 2^(k+m+1) Beta(k+1, m+1) P(Beta(k+1, m+1) > 1/2)

    Unless B is better, no bet has a positive expected gain. So E ever reaches 2 / alpha with
    probability at most alpha / 2 (Ville's inequality), however often it is checked. The same bet
    is made on A. The test holds at the ends of rounds even if A is better on some tasks and B on
    others: the expectation of a round is prod_t (1 + s d_t) <= (1 + s mean_t d_t)^T <= 1. Each
    independent unit gets one bet. Perturbed episodes do not count if the run has clean ones.
    """

    def __init__(self, reference: Iterable[EpisodeOutcome], name: str, alpha: float) -> None:
        self._open: dict[NamedStart, dict[EpisodeKey, EpisodeOutcome]] = {}
        """The reference's episodes by planned start, until that start had its bet."""
        for episode in clean_episodes(reference):
            self._open.setdefault(named_start(episode), {})[episode.key] = episode
        self._units = UnitIndex(on_join=self._join)
        self._bets: set[int] = set()
        """Units that had their bet."""
        self._name = name
        self._alpha = alpha
        self._pairs = 0
        self._unlike = 0
        self.wins_a = self.wins_b = 0

    def on_round_end(self, episodes: Round) -> None:
        """Count the wins of both; pairs with an error, or of different starts, are left out."""
        for episode in clean_episodes(episodes):
            planned = named_start(episode)
            of_a = self._open.get(planned, {}).pop(episode.key, None)
            bet = of_a is not None and self._bet(of_a, episode)
            if bet or not self._open.get(planned):
                self._open.pop(planned, None)

    def _bet(self, of_a: EpisodeOutcome, of_b: EpisodeOutcome) -> bool:
        """Bet on a pair; tell whether its start has had its bet by now."""
        if not (of_a.outcome.counts and of_b.outcome.counts):
            return False
        if not may_pair(of_a.started, of_b.started):
            self._unlike += 1
            return False
        unit = self._units.unit(self._units.add(of_b.started))
        if unit not in self._bets:
            self._bets.add(unit)
            self._pairs += 1
            self.wins_a += of_a.outcome is Outcome.SUCCESS and of_b.outcome.failed
            self.wins_b += of_b.outcome is Outcome.SUCCESS and of_a.outcome.failed
        return True

    def _join(self, kept: int, gone: int) -> None:
        if gone in self._bets:
            self._bets.remove(gone)
            self._bets.add(kept)

    @property
    def decision(self) -> str | None:
        """Better, worse or, when no pair is left, undecided."""
        better = e_value(self.wins_b, self.wins_a)
        worse = e_value(self.wins_a, self.wins_b)
        pairs = f"{self._pairs} pair{'s' * (self._pairs != 1)}"
        if self._unlike:
            pairs += f" ({self._unlike} left out: they start differently)"
        score = f"after {pairs}, {self.wins_b} won to {self.wins_a} lost"
        if max(better, worse) >= 2 / self._alpha:
            word = "better" if better > worse else "worse"
            return f"{word} than {self._name} at alpha {self._alpha:g} {score}"
        if not self._open:
            return f"undecided against {self._name} at alpha {self._alpha:g} {score}"
        return None


@lru_cache(maxsize=10_000)
def e_value(wins: int, losses: int) -> float:
    """Return the e-value of "wins are likelier than losses": the capital of ``PairedTest``."""
    from scipy.special import betaincc, betaln

    chance = float(betaincc(wins + 1, losses + 1, 0.5))
    if chance == 0:
        return 0.0
    log = (wins + losses + 1) * math.log(2) + float(betaln(wins + 1, losses + 1)) + math.log(chance)
    return math.exp(min(log, 700.0))


_EXAMPLES = "write ci_width<0.05 (all episodes), task_ci_width<0.2 (every task) or never"


def parse_stop_rule(text: str) -> StopRule | None:
    """Parse a stop rule such as ``ci_width<0.05``; ``never`` gives None."""
    if text.strip() == NEVER:
        return None
    parts = re.fullmatch(r"\s*([A-Za-z_]+)\s*<\s*([0-9.eE+-]+)\s*", text)
    if parts is None:
        raise UsageError(
            f"--eval.stop_when: {text!r} is not a stop rule; {_EXAMPLES}", code="flag.invalid-value"
        )
    name, number = parts.groups()
    if name not in ("ci_width", "task_ci_width"):
        near = did_you_mean(name, ["ci_width", "task_ci_width"])
        raise UsageError(
            f"--eval.stop_when: unknown rule {name!r}{near or f'; {_EXAMPLES}'}",
            code="flag.invalid-value",
        )
    try:
        width = float(number)
    except ValueError:
        width = math.nan
    if not 0 < width < 1:
        raise UsageError(
            f"--eval.stop_when: the width must be between 0 and 1, not {number}; {_EXAMPLES}",
            code="flag.out-of-range",
        )
    return CIWidth(width, per_task=name == "task_ci_width")
