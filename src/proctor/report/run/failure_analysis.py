"""Where episodes started, when failed ones stalled, and groups of similar failures.

Pure functions of the journal and the sampled states. The method is simple on purpose, so that a
reader can check it:

- A coordinate's range is the span from its 5th to its 95th percentile over all samples of a task.
- An episode stalled at the first sample from which every object stays within 5% of its range of its
  final place. The robot's own coordinates count only if objects move in fewer than a tenth of the
  episodes, as in reaching. Without sampled states, the largest reward so far is used. An episode
  that stalled in its last tenth is said to have moved until the end.
- Failures are grouped by k-means over the stall time (as a part of the episode) and the final
  state (in ranges). Both count equally. The number of groups is the smallest that explains 80% of
  the spread, at most five.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from proctor.benchmarks.base import ROBOT
from proctor.features import Array
from proctor.report.run.summary import by_task
from proctor.runs.journal import EpisodeRecord
from proctor.types import EpisodeKey, StateTrace

_STILL = 0.05
"""Part of a coordinate's range within which it counts as unmoved."""
_OBJECTS_MOVE = 0.1
"""Part of a task's episodes in which objects must move for the robot's motion to be ignored."""
_EXPLAINED = 0.8
_MAX_GROUPS, _MIN_GROUP = 5, 4
"""Most groups of a task, and the mean size that they must have."""
_TO_THE_END = 0.9
"""Part of an episode after which a stall is no stall: it moved until the end."""
_ITERATIONS = 50
_EXAMPLES = 3
_DESCRIBED = 3
"""Coordinates that describe a group."""


@dataclass(frozen=True)
class FailureGroup:
    """Similar failures of a task."""

    episodes: list[EpisodeKey]
    stalled: tuple[float, float, float]
    """Lower quartile, median and upper quartile of the step at which they stalled."""
    kept_moving: int
    """Episodes that had not stalled at their end."""
    ends: dict[str, float]
    """Median final coordinates, those that differ most from other failures first."""
    examples: list[EpisodeKey]
    """The most typical episodes."""


@dataclass(frozen=True)
class TaskAnalysis:
    """Start states and failures of one task."""

    names: list[str]
    """Coordinates that differ between starts."""
    starts: dict[EpisodeKey, list[float | None]]
    """Values of ``names`` at the start of each episode."""
    by_reward: bool
    """Whether the stall is that of the reward, because states were not sampled."""
    stalled: dict[EpisodeKey, int]
    """Step at which each failed episode stalled."""
    groups: list[FailureGroup]


def analyse_failures(
    rows: Sequence[EpisodeRecord], states: Mapping[EpisodeKey, StateTrace]
) -> dict[tuple[str, int], TaskAnalysis]:
    """Return the analysis of every task with recorded states."""
    found = {}
    for task, episodes in by_task(rows).items():
        known = _with_same_names([row for row in episodes if row.key in states], states)
        if known:
            found[task] = _analyse(known, {row.key: states[row.key] for row in known})
    return found


def _with_same_names(
    rows: list[EpisodeRecord], states: Mapping[EpisodeKey, StateTrace]
) -> list[EpisodeRecord]:
    """Return the episodes with the most frequent coordinates, which another version may change."""
    names = Counter(states[row.key].names for row in rows)
    return [row for row in rows if states[row.key].names == names.most_common(1)[0][0]]


def _analyse(rows: list[EpisodeRecord], traces: Mapping[EpisodeKey, StateTrace]) -> TaskAnalysis:
    names = traces[rows[0].key].names
    starts = np.array([traces[row.key].states[0] for row in rows], np.float64)
    varying = [column for column in range(len(names)) if _varies(starts[:, column])]
    failed = [row for row in rows if row.outcome.failed]
    by_reward = all(np.isnan(trace.states[1:-1]).all() for trace in traces.values())
    signals = {
        row.key: traces[row.key].best_reward[:, None] if by_reward else traces[row.key].states
        for row in rows
    }
    ranges = _ranges(np.concatenate(list(signals.values())))
    if not by_reward:
        ranges = _without_robot(names, ranges, list(signals.values()))
    stalled = {row.key: _stall(traces[row.key], signals[row.key], ranges) for row in failed}
    return TaskAnalysis(
        names=[names[column] for column in varying],
        starts={
            row.key: [_number(value) for value in start[varying]]
            for row, start in zip(rows, starts, strict=True)
        },
        by_reward=by_reward,
        stalled=stalled,
        groups=_groups(failed, traces, stalled),
    )


def _varies(values: Array) -> bool:
    known = values[np.isfinite(values)]
    return bool(known.size > 1 and np.ptp(known) > 1e-6 * max(1.0, float(np.abs(known).max())))


def _without_robot(names: Sequence[str], ranges: Array, signals: Sequence[Array]) -> Array:
    """Return the ranges with those of the robot infinite, if objects move in enough episodes."""
    robot = np.array([name.startswith(ROBOT) for name in names])
    objects = np.where(robot, np.inf, ranges)
    moved = sum(bool(_away(signal, objects).any()) for signal in signals)
    return objects if moved >= _OBJECTS_MOVE * len(signals) else ranges


def _away(signal: Array, ranges: Array) -> Array:
    """Tell which samples are away from the end, [samples, values]; NaN is not."""
    return np.asarray(np.abs(signal - signal[-1]) > _STILL * ranges)


def _ranges(samples: Array) -> Array:
    """Return the range of each column; infinite for one that never changes."""
    ranges = np.full(samples.shape[1], np.inf)
    for column in range(samples.shape[1]):
        known = samples[:, column][np.isfinite(samples[:, column])]
        if _varies(known):
            low, high = np.percentile(known, [5, 95])
            ranges[column] = high - low if high > low else np.ptp(known)
    return ranges


def _stall(trace: StateTrace, signal: Array, ranges: Array) -> int:
    """Return the step of the first sample from which nothing moves to the end."""
    moved = np.flatnonzero(_away(signal, ranges).any(axis=1))
    return int(trace.steps[moved[-1] + 1]) if moved.size else int(trace.steps[0])


def _groups(
    failed: Sequence[EpisodeRecord],
    traces: Mapping[EpisodeKey, StateTrace],
    stalled: Mapping[EpisodeKey, int],
) -> list[FailureGroup]:
    """Return the groups of failures, the largest first; none if there are few failures."""
    if len(failed) < _MIN_GROUP:
        return []
    lengths = np.array([max(1, int(traces[row.key].steps[-1])) for row in failed])
    steps = np.array([stalled[row.key] for row in failed])
    ends = np.array([traces[row.key].states[-1] for row in failed], np.float64)
    places = _in_ranges(ends)
    features = np.column_stack([steps / lengths, places / np.sqrt(max(1, places.shape[1]))])
    labels = _cluster(features)
    names = traces[failed[0].key].names
    groups = []
    for label in np.unique(labels):
        inside = np.flatnonzero(labels == label)
        distance = np.square(features[inside] - features[inside].mean(axis=0)).sum(axis=1)
        typical = inside[np.argsort(distance, kind="stable")[:_EXAMPLES]]
        quartiles = np.percentile(steps[inside], [25, 50, 75])
        groups.append(
            FailureGroup(
                episodes=[failed[int(place)].key for place in inside],
                stalled=(float(quartiles[0]), float(quartiles[1]), float(quartiles[2])),
                kept_moving=int(np.count_nonzero((steps >= _TO_THE_END * lengths)[inside])),
                ends=_described(names, ends, inside),
                examples=[failed[int(place)].key for place in typical],
            )
        )
    return sorted(groups, key=lambda group: -len(group.episodes))


def _in_ranges(ends: Array) -> Array:
    """Return the final states in units of their ranges around the median; constants left out."""
    ranges = _ranges(ends)
    moving = np.isfinite(ranges)
    centred = ends[:, moving] - np.nanmedian(ends[:, moving], axis=0)
    return np.asarray(np.clip(np.nan_to_num(centred / ranges[moving]), -2, 2))


def _described(names: Sequence[str], ends: Array, inside: Array) -> dict[str, float]:
    """Return the median final coordinates that set a group apart from other failures."""
    ranges = _ranges(ends)
    of_group, of_all = np.nanmedian(ends[inside], axis=0), np.nanmedian(ends, axis=0)
    apart = np.nan_to_num(np.abs(of_group - of_all) / ranges)
    order = [c for c in np.argsort(-apart, kind="stable") if np.isfinite(ranges[c])]
    return {
        names[column]: float(of_group[column])
        for column in order[:_DESCRIBED]
        if np.isfinite(of_group[column])
    }


def _cluster(points: Array) -> Array:
    """Return the group of each point: the fewest groups that explain most of the spread."""
    total = np.square(points - points.mean(axis=0)).sum()
    labels = np.zeros(len(points), np.int64)
    for k in range(1, min(_MAX_GROUPS, len(points) // _MIN_GROUP) + 1):
        labels, within = _k_means(points, k)
        if within <= (1 - _EXPLAINED) * total:
            break
    return labels


def _k_means(points: Array, k: int) -> tuple[Array, float]:
    """Return the group of each point, and the sum of squared distances to the groups' means.

    The first centre is the point nearest to the mean, and each further one is the point farthest
    from all centres. So the result does not depend on a random number.
    """
    squared = np.square(points - points.mean(axis=0)).sum(axis=1)
    centres = points[[int(np.argmin(squared))]]
    while len(centres) < k:
        nearest = _distances(points, centres).min(axis=1)
        centres = np.vstack([centres, points[int(np.argmax(nearest))]])
    labels = _distances(points, centres).argmin(axis=1)
    for _ in range(_ITERATIONS):
        present = np.unique(labels)
        centres = np.array([points[labels == label].mean(axis=0) for label in present])
        before, labels = labels, _distances(points, centres).argmin(axis=1)
        if (labels == before).all():
            break
    return labels, float(_distances(points, centres).min(axis=1).sum())


def _distances(points: Array, centres: Array) -> Array:
    """Return squared distances, [points, centres]."""
    return np.asarray(np.square(points[:, None, :] - centres[None, :, :]).sum(axis=2))


def _number(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
