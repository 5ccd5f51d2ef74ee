"""Contamination: which evaluated starts the policy was trained on. Pure functions.

A start was in the training data if it is one independent unit with the start of a training episode
(``stats/independent_units``). A perturbed episode belongs to its clean start. If a variant of a
task has other numbers than the training's starts, its planned start decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

from proctor.number_text import interval_text, percent_text
from proctor.report.run.summary import Tally, clean_rows, tally
from proctor.runs.folder import RunFolder
from proctor.runs.journal import EpisodeRecord
from proctor.stats.anytime import AnytimeInterval
from proctor.stats.independent_units import UnitIndex, unit_numbers
from proctor.trained_starts import GroupStarts, TrainedStarts, read_trained_starts
from proctor.types import EpisodeKey, EpisodeStart, Start

_OLDER = "the run is of an older Proctor, which did not compare starts"
_OF_TRIALS = (
    "trials on a robot measure its pose and not the objects, so their starts cannot be compared "
    "with those of demonstrations"
)
_OTHER_NUMBERS = "its training starts have other numbers than the evaluated ones of some tasks"
_BINS = 12


class StartedEpisode(Protocol):
    """A spec with a measured start, a journal row or a result."""

    @property
    def started(self) -> EpisodeStart:
        """Where the episode started."""


@dataclass(frozen=True)
class NearestStarts:
    """How far evaluated starts are from the nearest training start of their task.

    A distance is the largest difference of any of a start's numbers, as in the rule of equality.
    """

    distances: dict[EpisodeKey, float]

    @property
    def median(self) -> float:
        """The median over the episodes."""
        return median(self.distances.values())

    def histogram(self, seen: frozenset[EpisodeKey]) -> dict[str, list[Any]]:
        """Return counts of seen and unseen episodes between logarithmic edges, the first from 0."""
        positive = [distance for distance in self.distances.values() if distance > 0]
        if not positive:
            return {"edges": [0.0, 0.0], "seen": [len(self.distances)], "unseen": [0]}
        low, high = min(positive), max(positive)
        edges = np.geomspace(low, max(high, low * 1.0001), _BINS + 1)
        counts = {True: [0] * _BINS, False: [0] * _BINS}
        for key, distance in self.distances.items():
            place = int(np.searchsorted(edges[1:-1], distance, side="right"))
            counts[key in seen][place] += 1
        shown = [0.0 if len(positive) < len(self.distances) else low, *edges[1:].tolist()]
        return {"edges": shown, "seen": counts[True], "unseen": counts[False]}


@dataclass(frozen=True)
class Contamination:
    """Which of a run's clean starts the policy was trained on, and its rates on both kinds."""

    starts: int
    """Evaluated starts: independent units of the completed clean episodes."""
    seen: int
    """Starts that were in the training data; if ``unknown`` is set, at least so many."""
    on_seen: Tally
    on_unseen: Tally
    unknown: str | None = None
    """Why it is not known whether others were in the training data; None: they were not."""
    nearest: NearestStarts | None = None
    """None: starts have no numbers to compare."""
    seen_episodes: frozenset[EpisodeKey] = field(default_factory=frozenset)

    @property
    def text(self) -> str:
        """One line for terminal, page and card."""
        if self.unknown is None:
            return self._counted
        at_least = f"; at least {self._counted}" if self.seen else ""
        return f"contamination unknown: {self.unknown}{at_least}"

    @property
    def _counted(self) -> str:
        start = f"start{'s' * (self.starts != 1)}"
        line = f"{self.seen} of {self.starts} {start} were in the training data"
        if self.starts == 1:
            line = line.replace(" were ", " was ")
        rates = [f"{_rate(self.on_seen)} on those"] if self.seen else []
        if self.seen and self.unknown is None and self.seen < self.starts:
            rates.append(f"{_rate(self.on_unseen)} on unseen ones")
        return line + (f": {', '.join(rates)}" if rates else "")

    @property
    def nearest_text(self) -> str | None:
        """The distances to training starts as a line; None without them."""
        if self.nearest is None:
            return None
        distances = self.nearest.distances.values()
        return (
            f"distance to the nearest training start (largest difference of its numbers): median "
            f"{self.nearest.median:.3g}, smallest {min(distances):.3g}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the values for ``eval_info.json``, the page and the card."""
        nearest = None
        if self.nearest is not None:
            nearest = {
                "median": self.nearest.median,
                "smallest": min(self.nearest.distances.values()),
                "histogram": self.nearest.histogram(self.seen_episodes),
            }
        return {
            "text": self.text,
            "unknown": self.unknown,
            "starts": self.starts,
            "seen": self.seen,
            "on_seen": _tally_json(self.on_seen),
            "on_unseen": None if self.unknown is not None else _tally_json(self.on_unseen),
            "nearest": nearest,
        }


def contamination_of(
    folder: Path, rows: Sequence[EpisodeRecord], monitored: AnytimeInterval | None = None
) -> Contamination | None:
    """Return the contamination of a run; None if its policy was not trained, or nothing ran."""
    trained = read_trained_starts(folder)
    if trained is None:
        record = RunFolder(folder).read()
        if record is None or record.is_recording:
            return None
        policy = record.resolved.get("policy")
        if not isinstance(policy, Mapping) or not policy.get("path"):
            return None
        trained = TrainedStarts(unknown=(_OF_TRIALS if "trials" in record.protocol else _OLDER,))
    return make_contamination(trained, rows, monitored)


def make_contamination(
    trained: TrainedStarts,
    rows: Iterable[EpisodeRecord],
    monitored: AnytimeInterval | None = None,
) -> Contamination | None:
    """Compare the starts of completed clean episodes with those that trained the policy."""
    done = [row for row in clean_rows(rows) if row.outcome.counts]
    if not done:
        return None
    is_seen = seen_episodes(trained, done)
    seen, unseen = (
        [row for row, one in zip(done, is_seen, strict=True) if one is kind]
        for kind in (True, False)
    )
    units = unit_numbers(done)
    reasons = [*trained.unknown, *_incomparable(trained, done)]
    distances = nearest_distances(trained, done)
    return Contamination(
        starts=len(set(units)),
        seen=len({unit for unit, one in zip(units, is_seen, strict=True) if one}),
        on_seen=tally(seen, monitored),
        on_unseen=tally(unseen, monitored),
        unknown="; ".join(reasons) or None,
        nearest=NearestStarts(distances) if distances else None,
        seen_episodes=frozenset(row.key for row in seen),
    )


def seen_episodes(trained: TrainedStarts, episodes: Sequence[StartedEpisode]) -> list[bool]:
    """Tell of each episode whether its start is one unit with a training start of its task."""
    index = UnitIndex()
    known: list[int] = []
    names = _evaluated_names(episodes)
    for task, evaluated in names.items():
        for key, group in trained.of_task(task):
            by_plan = bool(evaluated) and key.names not in evaluated
            for start, planned in group.starts.values():
                name = planned if by_plan else f"\0{start.digest}"
                known.append(index.add(EpisodeStart(task, False, name, 0, None, start)))
    if not known:
        return [False] * len(episodes)
    nodes = [index.add(_comparable(trained, episode.started)) for episode in episodes]
    units = {index.unit(node) for node in known}
    return [index.unit(node) in units for node in nodes]


def _evaluated_names(
    episodes: Iterable[StartedEpisode],
) -> dict[tuple[str, int], set[tuple[str, ...]]]:
    """Return the names of the evaluated starts' numbers, by clean task."""
    names: dict[tuple[str, int], set[tuple[str, ...]]] = {}
    for episode in episodes:
        start = episode.started
        of_task = names.setdefault(start.clean_task, set())
        if start.measured is not None:
            of_task.add(start.measured.names)
    return names


def _comparable(trained: TrainedStarts, episode: EpisodeStart) -> EpisodeStart:
    """Return an episode's start as the training's starts of its task are kept."""
    found = None if episode.measured is None else _group_of(trained, episode, episode.measured)
    if found is None or episode.measured is None:
        return episode
    return episode._replace(measured=found.comparable(episode.measured))


def _group_of(trained: TrainedStarts, episode: EpisodeStart, start: Start) -> GroupStarts | None:
    groups = trained.of_task(episode.clean_task)
    return next((group for key, group in groups if key.names == start.names), None)


def _incomparable(trained: TrainedStarts, rows: Sequence[EpisodeRecord]) -> list[str]:
    """Return why some episodes cannot be compared with the training's starts."""
    reasons = []
    unmeasured = sum(row.start is None for row in rows)
    if unmeasured:
        reasons.append(f"{unmeasured} of {len(rows)} episodes have no measured start")
    for row in rows:
        if row.start is None or row.started.perturbed:
            continue
        groups = [key.names for key, _ in trained.of_task(row.started.clean_task)]
        if groups and row.start.names not in groups:
            return [*reasons, _OTHER_NUMBERS]
    return reasons


def nearest_distances(
    trained: TrainedStarts, rows: Sequence[EpisodeRecord]
) -> dict[EpisodeKey, float]:
    """Return the distance of each episode's start to the nearest training start of its task.

    Episodes without a training start of the same numbers are left out.
    """
    known: dict[int, Any] = {}
    found = {}
    for row in rows:
        if row.start is None or not row.start.names:
            continue
        group = _group_of(trained, row.started, row.start)
        if group is None or group.condensed:
            continue
        if id(group) not in known:
            known[id(group)] = np.array([start.values for start, _ in group.starts.values()])
        away = np.abs(known[id(group)] - np.array(row.start.values)).max(axis=1)
        found[row.key] = float(away.min())
    return found


def _rate(added: Tally) -> str:
    if added.rate is None or added.interval is None:
        return "n/a"
    return f"{percent_text(added.rate)} {interval_text(added.interval)}"


def _tally_json(added: Tally) -> dict[str, Any]:
    return {
        "n_episodes": added.episodes,
        "n_starts": added.units.distinct,
        "successes": added.successes,
        "rate": added.rate,
        "interval95": None if added.interval is None else list(added.interval),
    }
