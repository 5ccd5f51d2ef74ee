"""Metrics of online learning: losses, episodes, interventions, buffers and speed."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from proctor.rl.link.links import InteractionMessage
from proctor.rl.transitions import Transition

SUCCESS = "Success"
"""Name of an episode's success at any step, 0 or 1, in the numbers of an interaction message."""
SUCCESS_AT_END = "Success at end"
"""Name of its success at the last step."""


@dataclass
class EpisodeRecord:
    """The transitions of one episode so far, as numbers."""

    steps: int = 0
    reward: float = 0.0
    interventions: int = 0

    def add(self, transition: Transition) -> None:
        """Count a transition."""
        self.steps += 1
        self.reward += transition.reward
        self.interventions += transition.is_intervention


@dataclass(frozen=True)
class BufferSizes:
    """Transitions in the replay buffers."""

    online: int
    offline: int | None
    """None without an offline buffer."""


@dataclass(frozen=True)
class OnlineMetrics:
    """Metrics since the last report; ``step`` and ``updates`` count from the start."""

    step: int
    """Environment steps."""
    updates: int
    losses: dict[str, float]
    """Means of the algorithm's metrics, by LeRobot's names."""
    updates_per_s: float
    steps_per_s: float
    online_buffer: int
    offline_buffer: int | None
    episodes: int
    reward: float | None
    """Mean reward of the episodes that ended; None without one."""
    success: float | None
    """Share of the actors' episodes with success at any step; None if it is not known. Actors
    explore, so this is not the policy's success rate."""
    success_at_end: float | None
    """Share of their episodes that ended in success."""
    intervention_rate: float | None
    """Share of the episodes' steps with an intervention."""

    @property
    def is_finite(self) -> bool:
        """Whether all losses are finite."""
        return all(math.isfinite(value) for value in self.losses.values())

    def as_row(self) -> dict[str, Any]:
        """Return the metrics as a row of the log."""
        return {"kind": "online", **asdict(self)}


@dataclass
class MetricMeans:
    """Sums since the last report."""

    updates: int = 0
    _sums: dict[str, tuple[float, int]] = field(default_factory=dict)
    _episodes: list[EpisodeRecord] = field(default_factory=list)
    _successes: dict[str, list[float]] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _first_step: int = 0

    def restart(self, step: int) -> None:
        """Forget everything, and count from environment step ``step``."""
        self.updates, self._first_step, self._began = 0, step, time.monotonic()
        self._sums, self._episodes, self._successes = {}, [], {}

    def add_update(self, metrics: dict[str, float]) -> None:
        """Add the metrics of an update; not every update has all of them."""
        self.updates += 1
        for name, value in metrics.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + value, count + 1

    def add_episode(self, episode: EpisodeRecord) -> None:
        """Add an episode that has ended."""
        self._episodes.append(episode)

    def add_interaction(self, message: InteractionMessage) -> None:
        """Add what an actor says of an episode: its success, if it knows."""
        for name in (SUCCESS, SUCCESS_AT_END):
            if name in message.extra:
                self._successes.setdefault(name, []).append(message.extra[name])

    def collect(self, step: int, updates: int, sizes: BufferSizes) -> OnlineMetrics:
        """Return the metrics, and restart."""
        elapsed_s = max(1e-9, time.monotonic() - self._began)
        steps = sum(episode.steps for episode in self._episodes)
        metrics = OnlineMetrics(
            step=step,
            updates=updates,
            losses={name: total / count for name, (total, count) in self._sums.items()},
            updates_per_s=self.updates / elapsed_s,
            steps_per_s=(step - self._first_step) / elapsed_s,
            online_buffer=sizes.online,
            offline_buffer=sizes.offline,
            episodes=len(self._episodes),
            reward=_mean([episode.reward for episode in self._episodes]),
            success=_mean(self._successes.get(SUCCESS, [])),
            success_at_end=_mean(self._successes.get(SUCCESS_AT_END, [])),
            intervention_rate=(
                sum(episode.interventions for episode in self._episodes) / steps if steps else None
            ),
        )
        self.restart(step)
        return metrics


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
