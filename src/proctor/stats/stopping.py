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
from proctor.types import EpisodeKey, Outcome, WorldKey

NEVER = "never"


class EpisodeOutcome(NamedTuple):
    """The outcome of an episode and the world it started from."""

    key: EpisodeKey
    world: WorldKey
    outcome: Outcome


Round = Sequence[EpisodeOutcome]
"""The episodes of one index, one of every task."""


class StopRule(Protocol):
    """Decides when a run may stop."""

    def on_round_end(self, episodes: Round) -> None:
        """Receive the episodes of one index; rounds come in order, each once."""

    @property
    def decision(self) -> str | None:
        """Why the run may stop; None: continue."""


class CIWidth:
    """Stops when the 95% interval of all episodes, or of every task, is narrow enough.

    The interval is anytime-valid (``anytime``), since it is checked after every round. Each world
    counts once: another episode of it may be a copy of the first.
    """

    def __init__(self, width: float, *, per_task: bool = False) -> None:
        self._width = width
        self._per_task = per_task
        self._counts: dict[tuple[str, int] | None, list[int]] = {}  # [successes, episodes]
        self._worlds: set[WorldKey] = set()

    def on_round_end(self, episodes: Round) -> None:
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
        """The width of the widest interval, once it is below the limit."""
        intervals = [anytime_interval(k, n, self._width) for k, n in self._counts.values()]
        widest = max((1.0 if i is None else i[1] - i[0] for i in intervals), default=1.0)
        if widest >= self._width:
            return None
        name = "task_ci_width" if self._per_task else "ci_width"
        n = sum(counts[1] for counts in self._counts.values())
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
    world gets one bet: another pair of it may be a copy of the first.
    """

    def __init__(self, reference: Iterable[EpisodeOutcome], name: str, alpha: float) -> None:
        self._left: dict[WorldKey, dict[EpisodeKey, Outcome]] = {}  # worlds without a bet yet
        for key, world, outcome in reference:
            self._left.setdefault(world, {})[key] = outcome
        self._name = name
        self._alpha = alpha
        self._pairs = 0
        self.wins_a = self.wins_b = 0

    def on_round_end(self, episodes: Round) -> None:
        """Count the wins of both; pairs with an error are left out."""
        for key, world, of_b in episodes:
            of_a = self._left.get(world, {}).pop(key, Outcome.ERROR)
            complete = of_a.counts and of_b.counts
            if complete or not self._left.get(world):
                self._left.pop(world, None)
            if not complete:
                continue
            self._pairs += 1
            self.wins_a += of_a is Outcome.SUCCESS and of_b.failed
            self.wins_b += of_b is Outcome.SUCCESS and of_a.failed

    @property
    def decision(self) -> str | None:
        """Better, worse or, when no pair is left, undecided."""
        better = e_value(self.wins_b, self.wins_a)
        worse = e_value(self.wins_a, self.wins_b)
        pairs = f"{self._pairs} pair{'s' * (self._pairs != 1)}"
        score = f"after {pairs}, {self.wins_b} won to {self.wins_a} lost"
        if max(better, worse) >= 2 / self._alpha:
            word = "better" if better > worse else "worse"
            return f"{word} than {self._name} at alpha {self._alpha:g} {score}"
        if not self._left:
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
    """Parse a stop rule such as ``ci_width<0.05``; ``never`` gives None.

    Raises:
        UsageError: the text is not a stop rule; the message has examples.
    """
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
