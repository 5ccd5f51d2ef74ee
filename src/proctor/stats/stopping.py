"""Stopping when sure: rules that look at a run while it goes on, and stay valid although they do.

Two things would bias a run that stops early, and both are taken care of here. Tasks run one after
the other would leave the first ones over-represented; and among episodes that run at once, the
successes end sooner, so that counting them as they end favours whoever succeeds. A ``Stopper``
therefore hears episodes in any order but hands them to its rules in rounds: episode 0 of every
task, when all of those have ended, then episode 1 of every task, and so on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from proctor.errors import UsageError, did_you_mean
from proctor.stats.anytime import anytime_interval
from proctor.types import EpisodeKey, Outcome, WorldKey

NEVER = "never"


class EpisodeOutcome(NamedTuple):
    """How an episode ended, and where it had begun."""

    key: EpisodeKey
    world: WorldKey
    outcome: Outcome


Round = Sequence[EpisodeOutcome]
"""The episodes of one index, of every task."""


class StopRule(Protocol):
    """Decides when a run has shown enough."""

    def round_ended(self, episodes: Round) -> None:
        """Take the episodes of one index; rounds come in order, each once."""

    @property
    def decision(self) -> str | None:
        """Why the run may stop, in words; None: go on."""


class CIWidth:
    """Stops when the 95% interval, of all episodes or of every task, is narrow enough.

    The interval is one that holds although it is looked at after every round (``anytime``). Another
    episode of a world may be a copy of the first: each world counts once.
    """

    def __init__(self, width: float, *, per_task: bool = False) -> None:
        self._width = width
        self._per_task = per_task
        self._counts: dict[tuple[str, int] | None, list[int]] = {}  # [successes, episodes]
        self._worlds: set[WorldKey] = set()

    def round_ended(self, episodes: Round) -> None:
        """Count the round."""
        for (suite, task_id, _), world, outcome in episodes:
            cell = (suite, task_id) if self._per_task else None
            counts = self._counts.setdefault(cell, [0, 0])
            if outcome.counts and world not in self._worlds:
                self._worlds.add(world)
                counts[0] += outcome is Outcome.SUCCESS
                counts[1] += 1

    @property
    def decision(self) -> str | None:
        """Say how narrow the widest interval is, once it is narrow enough."""
        intervals = [anytime_interval(k, n, self._width) for k, n in self._counts.values()]
        widest = max((1.0 if i is None else i[1] - i[0] for i in intervals), default=1.0)
        if widest >= self._width:
            return None
        name = "task_ci_width" if self._per_task else "ci_width"
        n = sum(counts[1] for counts in self._counts.values())
        return f"{name} {widest:.4f} < {self._width:g} after {n} episodes"


class PairedTest:
    """Stops when B, which runs now, is shown to be better or worse than A on the same episodes.

    A bet on B: of a capital of 1, the share s is staked on B whenever only one of the two solves
    an episode. The capital, averaged over all s in [0, 1], after k wins of B and m of A is

        E = integral of (1 + s)^k (1 - s)^m ds = 2^(k+m+1) Beta(k+1, m+1) P(Beta(k+1, m+1) > 1/2)

    Unless B is better, no bet is expected to gain, so E ever reaches 2 / alpha with probability at
    most alpha / 2 (Ville's inequality), however often one looks. The same is bet on A. It holds
    at the ends of rounds when tasks differ in who is better but not on average: the expectation of
    a round is prod_t (1 + s d_t) <= (1 + s mean_t d_t)^T <= 1. Another pair of a world may be a
    copy of the first: on every world one bet is made.
    """

    def __init__(self, reference: Iterable[EpisodeOutcome], name: str, alpha: float) -> None:
        self._left: dict[WorldKey, dict[EpisodeKey, Outcome]] = {}  # worlds without a bet
        for key, world, outcome in reference:
            self._left.setdefault(world, {})[key] = outcome
        self._name = name
        self._alpha = alpha
        self._pairs = 0
        self.wins_a = self.wins_b = 0

    def round_ended(self, episodes: Round) -> None:
        """Count who solved which episode; a pair with an error says nothing."""
        for key, world, of_b in episodes:
            of_a = self._left.get(world, {}).pop(key, Outcome.ERROR)
            says = of_a.counts and of_b.counts
            if says or not self._left.get(world):
                self._left.pop(world, None)
            if not says:
                continue
            self._pairs += 1
            self.wins_a += of_a is Outcome.SUCCESS and of_b.failed
            self.wins_b += of_b is Outcome.SUCCESS and of_a.failed

    @property
    def decision(self) -> str | None:
        """Say better, worse or, when no pair is left, undecided."""
        better = evidence(self.wins_b, self.wins_a)
        worse = evidence(self.wins_a, self.wins_b)
        pairs = f"{self._pairs} pair{'s' * (self._pairs != 1)}"
        score = f"after {pairs}, {self.wins_b} won to {self.wins_a} lost"
        if max(better, worse) >= 2 / self._alpha:
            word = "better" if better > worse else "worse"
            return f"{word} than {self._name} at alpha {self._alpha:g} {score}"
        if not self._left:
            return f"undecided against {self._name} at alpha {self._alpha:g} {score}"
        return None


@lru_cache(maxsize=10_000)
def evidence(wins: int, losses: int) -> float:
    """Return the e-value for "wins are likelier than losses": the capital of ``PairedTest``."""
    from scipy.special import betaincc, betaln

    chance = float(betaincc(wins + 1, losses + 1, 0.5))
    if chance == 0:
        return 0.0
    log = (wins + losses + 1) * math.log(2) + float(betaln(wins + 1, losses + 1)) + math.log(chance)
    return math.exp(min(log, 700.0))


_EXAMPLES = "write ci_width<0.05 (all episodes), task_ci_width<0.2 (every task) or never"


def parse_stop_rule(text: str) -> StopRule | None:
    """Return the rule that ``text`` names, as ``ci_width<0.05``; None for ``never``.

    Raises:
        UsageError: with examples.
    """
    if text.strip() == NEVER:
        return None
    parts = re.fullmatch(r"\s*([A-Za-z_]+)\s*<\s*([0-9.eE+-]+)\s*", text)
    if parts is None:
        raise UsageError(
            f"--eval.stop_when: {text!r} is no stop rule; {_EXAMPLES}", code="flag.invalid-value"
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
            f"--eval.stop_when: a width lies between 0 and 1, not {number}; {_EXAMPLES}",
            code="flag.out-of-range",
        )
    return CIWidth(width, per_task=name == "task_ci_width")
