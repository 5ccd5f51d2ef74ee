"""Early stopping: collect episodes into rounds, pass them to stop rules, and say when to stop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proctor.callbacks.base import Callback
from proctor.stats.stopping import EpisodeOutcome, StopRule
from proctor.types import EpisodeKey, EpisodeResult, EpisodeSpec


class EarlyStopping(Callback):
    """A callback that collects episodes into rounds and decides, once, when to stop.

    Without rules it never stops the run and stores no episodes.
    """

    def __init__(self, plan: Iterable[EpisodeSpec], rules: Sequence[StopRule]) -> None:
        self._rules = rules
        self._missing: dict[int, set[EpisodeKey]] = {}
        for spec in plan if rules else ():
            self._missing.setdefault(spec.index, set()).add(spec.key)
        self._rounds = sorted(self._missing, reverse=True)  # rounds to come, the next one last
        self._ended: dict[int, list[EpisodeOutcome]] = {index: [] for index in self._rounds}
        self.decision: str | None = None

    def add(self, episode: EpisodeOutcome) -> None:
        """Add one finished episode, of this session or an earlier one."""
        if not self._rules:
            return
        index = episode.key[2]
        self._missing[index].discard(episode.key)
        self._ended[index].append(episode)
        while self.decision is None and self._rounds and not self._missing[self._rounds[-1]]:
            episodes = self._ended[self._rounds.pop()]
            for rule in self._rules:
                rule.on_round_end(episodes)
            self.decision = next((r.decision for r in self._rules if r.decision is not None), None)

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Add one finished episode."""
        self.add(EpisodeOutcome(result.key, result.started, result.outcome))

    @property
    def decided(self) -> bool:
        """Whether the run can stop."""
        return self.decision is not None
