"""Hears episodes in any order, hands them to stop rules in rounds, and says when to stop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proctor.callbacks.base import Callback
from proctor.stats.stopping import EpisodeOutcome, StopRule
from proctor.types import EpisodeKey, EpisodeResult, EpisodeSpec, Outcome, WorldKey


class EarlyStopping(Callback):
    """A recorder that gathers episodes into rounds and says, once and for all, when to stop.

    Without rules it never does, and keeps no episode in mind however many there are.
    """

    def __init__(self, plan: Iterable[EpisodeSpec], rules: Sequence[StopRule]) -> None:
        self._rules = rules
        self._missing: dict[int, set[EpisodeKey]] = {}
        self._worlds: dict[EpisodeKey, WorldKey] = {}
        for spec in plan if rules else ():
            self._missing.setdefault(spec.index, set()).add(spec.key)
            self._worlds[spec.key] = spec.world_key
        self._rounds = sorted(self._missing, reverse=True)  # those to come, the next one last
        self._ended: dict[int, list[EpisodeOutcome]] = {index: [] for index in self._rounds}
        self.decision: str | None = None

    def add(self, key: EpisodeKey, outcome: Outcome) -> None:
        """Take one finished episode, of this session or of an earlier one."""
        if not self._rules:
            return
        index = key[2]
        self._missing[index].discard(key)
        self._ended[index].append(EpisodeOutcome(key, self._worlds[key], outcome))
        while self.decision is None and self._rounds and not self._missing[self._rounds[-1]]:
            episodes = self._ended[self._rounds.pop()]
            for rule in self._rules:
                rule.round_ended(episodes)
            self.decision = next((r.decision for r in self._rules if r.decision is not None), None)

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Take one finished episode."""
        self.add(result.spec.key, result.outcome)

    @property
    def decided(self) -> bool:
        """Whether no further episode is needed."""
        return self.decision is not None
