"""Independent units: episodes that start alike are one unit of every statistic.

Another episode of a start may be a copy of the first, so it is no further evidence of its own. Two
episodes are in one unit if their measured starts agree within the benchmark's tolerance, whatever
seed, init state or repeat named them. A perturbed episode belongs to the start of its clean
episode. An episode whose start was not measured (a journal of an older version) belongs to the
start that the plan named.

Every rate, interval, test and stop rule takes its units from here. No other module groups episodes
by seed, init state or start (``tests/unit/project/test_independent_units.py``).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import Protocol, TypeAlias, TypeVar

from proctor.types import EpisodeStart, Start


class _Episode(Protocol):
    """A spec, a journal row or a result."""

    @property
    def started(self) -> EpisodeStart: ...


Episode = TypeVar("Episode", bound=_Episode)
PlanKey: TypeAlias = tuple[int, int | None]
NamedStart: TypeAlias = tuple[tuple[str, int], str]


def plan_key(episode: _Episode) -> PlanKey:
    """Return (seed, init state): equal for the episodes of a task that may form a pair."""
    return (episode.started.seed, episode.started.init_state)


def named_start(episode: _Episode) -> NamedStart:
    """Return (clean task, start) as the plan names it, for episodes that are still to run."""
    return (episode.started.clean_task, episode.started.planned)


def equal_starts(a: Start, b: Start) -> bool:
    """Tell whether two measured starts agree within the benchmark's tolerance."""
    if a.digest == b.digest:
        return True
    if a.names != b.names or not a.names:
        return False
    tolerance = max(a.tolerance, b.tolerance)
    return all(abs(x - y) <= tolerance for x, y in zip(a.values, b.values, strict=True))


def may_pair(a: EpisodeStart, b: EpisodeStart) -> bool:
    """Tell whether two episodes of one plan key start alike, as far as it is known.

    If only one of them was measured, the plan decides; ``comparison_warnings`` says so.
    """
    if a.measured is not None and b.measured is not None:
        return equal_starts(a.measured, b.measured)
    return a.planned == b.planned or a.unnamed in (a.planned, b.planned)


def independent_units(episodes: Iterable[Episode]) -> list[list[Episode]]:
    """Group episodes into independent units, in the order of their first episodes."""
    episodes = list(episodes)
    units: dict[int, list[Episode]] = {}
    for episode, number in zip(episodes, unit_numbers(episodes), strict=True):
        units.setdefault(number, []).append(episode)
    return list(units.values())


def unit_numbers(episodes: Iterable[_Episode]) -> list[int]:
    """Return the number of each episode's independent unit."""
    return list(_unit_numbers(tuple(episode.started for episode in episodes)))


@lru_cache(maxsize=8)
def _unit_numbers(starts: tuple[EpisodeStart, ...]) -> tuple[int, ...]:
    """Return the unit of each start; a report asks for those of the same episodes many times."""
    index = UnitIndex()
    nodes = [index.add(start) for start in starts]
    return tuple(index.unit(node) for node in nodes)


@dataclass
class UnitCount:
    """The completed episodes of one unit."""

    successes: int = 0
    episodes: int = 0
    first: tuple[tuple[str, int, int], bool] | None = None
    """Key and success of the first episode in the order of the plan."""
    tasks: frozenset[tuple[str, int]] = frozenset()
    """Its task; several if perturbed variants of one start count together."""

    def take(self, other: UnitCount) -> None:
        """Add the episodes of ``other``."""
        self.tasks |= other.tasks
        self.successes += other.successes
        self.episodes += other.episodes
        if self.first is None or (other.first is not None and other.first[0] < self.first[0]):
            self.first = other.first


@dataclass(frozen=True)
class RateCounts:
    """The counts behind a rate."""

    successes: float
    episodes: int
    effective_n: float
    """The effective sample size if the episodes of a unit are copies."""


class UnitCounts:
    """Counts the completed episodes of a rate by independent unit, in any order of arrival."""

    def __init__(self, episodes: Iterable[tuple[_Counted, bool]] = ()) -> None:
        self._index: UnitIndex | None = None
        self._counts: dict[int, UnitCount] = {}
        self._totals = _Totals()
        self._tasks: dict[frozenset[tuple[str, int]], _Totals] = {}
        counted = list(episodes)
        self._starts = tuple(episode.started for episode, _ in counted)
        self._add_all(counted)

    def _add_all(self, episodes: Sequence[tuple[_Counted, bool]]) -> None:
        """Count many episodes: each unit is added to the totals once, not once an episode."""
        tasks: dict[tuple[str, int], frozenset[tuple[str, int]]] = {}
        for (episode, success), unit in zip(episodes, _unit_numbers(self._starts), strict=True):
            key = episode.key
            task = tasks.get(key[:2]) or tasks.setdefault(key[:2], frozenset([key[:2]]))
            count = self._counts.setdefault(unit, UnitCount(tasks=task))
            if count.tasks is not task:
                count.tasks |= task
            count.successes += success
            count.episodes += 1
            if count.first is None or key < count.first[0]:
                count.first = (key, success)
        for count in self._counts.values():
            self._remember(count)

    def add(self, episode: _Counted, success: bool) -> None:
        """Count one completed episode."""
        if self._index is None:
            self._index = UnitIndex(self._starts, self._join)
        unit = self._index.unit(self._index.add(episode.started))
        count = self._counts.setdefault(unit, UnitCount())
        self._forget(count)
        task = frozenset([episode.key[:2]])
        count.take(UnitCount(int(success), 1, (episode.key, success), task))
        self._remember(count)

    def _join(self, kept: int, gone: int) -> None:
        """Join the counts of two units that are one."""
        lost = self._counts.pop(gone, None)
        if lost is None:
            return
        self._forget(lost)
        count = self._counts.setdefault(kept, UnitCount())
        self._forget(count)
        count.take(lost)
        self._remember(count)

    def _remember(self, count: UnitCount, sign: int = 1) -> None:
        self._totals.add(count, sign)
        self._tasks.setdefault(count.tasks, _Totals()).add(count, sign)

    def _forget(self, count: UnitCount) -> None:
        self._remember(count, -1)

    @property
    def distinct(self) -> int:
        """Number of independent units."""
        return len(self._counts)

    @property
    def episodes(self) -> int:
        """Number of counted episodes."""
        return self._totals.episodes

    @property
    def effective_n(self) -> float:
        """The effective sample size if the episodes of a unit are copies (Kish 1965).

        The rate varies like that of as many independent episodes: the number of units if all have
        equally many episodes, and less otherwise.
        """
        return self._totals.effective_n

    @property
    def total(self) -> RateCounts:
        """The counts of all episodes."""
        return self._totals.counts

    @property
    def tasks(self) -> list[RateCounts]:
        """The counts of each task; empty if a unit has episodes of several tasks."""
        tasks = {of: totals for of, totals in self._tasks.items() if totals.episodes}
        if any(len(of) > 1 for of in tasks):
            return []
        return [totals.counts for totals in tasks.values()]

    @property
    def first(self) -> tuple[int, int]:
        """Successes and number of episodes if only the first one of each unit counts."""
        return self._totals.first_successes, len(self._counts)

    @property
    def clusters(self) -> list[tuple[int, int]]:
        """(successes, episodes) of each unit."""
        return [(count.successes, count.episodes) for count in self._counts.values()]


@dataclass
class _Totals:
    """Sums over units."""

    successes: int = 0
    episodes: int = 0
    squares: int = 0
    first_successes: int = 0

    def add(self, count: UnitCount, sign: int) -> None:
        self.successes += sign * count.successes
        self.episodes += sign * count.episodes
        self.squares += sign * count.episodes**2
        self.first_successes += sign * bool(count.first and count.first[1])

    @property
    def effective_n(self) -> float:
        return self.episodes**2 / self.squares if self.episodes else 0.0

    @property
    def counts(self) -> RateCounts:
        return RateCounts(self.successes, self.episodes, self.effective_n)


class _Counted(_Episode, Protocol):
    @property
    def key(self) -> tuple[str, int, int]: ...


class UnitIndex:
    """Finds the unit of each episode while episodes arrive: a union-find over starts."""

    def __init__(
        self,
        starts: Iterable[EpisodeStart] = (),
        on_join: Callable[[int, int], None] | None = None,
    ) -> None:
        self._parents: list[int] = []
        self._on_join: Callable[[int, int], None] | None = None
        self._planned: dict[tuple[str, int, str], _PlannedStart] = {}
        self._measured: dict[tuple[str, int, tuple[str, ...]], _MeasuredStarts] = {}
        for start in starts:
            self.add(start)
        self._on_join = on_join

    def add(self, start: EpisodeStart) -> int:
        """Add an episode's start, and return its node."""
        measured = None if start.measured is None else self._measured_node(start, start.measured)
        planned = self._planned.get((*start.clean_task, start.planned))
        if planned is None:
            planned = self._planned[*start.clean_task, start.planned] = _PlannedStart(self._node())
        if measured is not None and measured not in planned.measured:
            planned.measured.append(measured)
        if measured is not None and not start.perturbed and not planned.joins:
            return measured
        planned.joins = True
        for node in planned.measured:
            self._union(planned.node, node)
        return planned.node

    def unit(self, node: int) -> int:
        """Return the unit that a node belongs to by now."""
        while self._parents[node] != node:
            self._parents[node] = self._parents[self._parents[node]]
            node = self._parents[node]
        return node

    def _node(self) -> int:
        self._parents.append(len(self._parents))
        return self._parents[-1]

    def _measured_node(self, episode: EpisodeStart, start: Start) -> int:
        key = (*episode.clean_task, start.names)
        known = self._measured.get(key)
        if known is None:
            known = self._measured[key] = _MeasuredStarts()
        if (node := known.nodes.get(start.digest)) is None:
            node = known.nodes[start.digest] = self._node()
            for other in known.near(start, node) if start.names else ():
                self._union(node, other)
        return node

    def _union(self, a: int, b: int) -> None:
        kept, gone = sorted((self.unit(a), self.unit(b)))
        if kept != gone:
            self._parents[gone] = kept
            if self._on_join is not None:
                self._on_join(kept, gone)


class _PlannedStart:
    """A start as the plan names it, and the starts that were measured for it."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.measured: list[int] = []
        self.joins = False
        """Whether an episode that is perturbed, or was not measured, needs it."""


class _MeasuredStarts:
    """The measured starts of a task, searched by their distance.

    They are sorted by a weighted sum: starts that agree have nearly equal sums.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}
        self._sums: list[float] = []
        self._starts: list[tuple[Start, int]] = []

    def near(self, start: Start, node: int) -> list[int]:
        """Return the nodes of known starts that equal ``start``, and add it."""
        weights, largest = _weights(len(start.values))
        total = math.fsum(map(mul, weights, start.values))
        reach = start.tolerance * largest
        low, high = bisect_left(self._sums, total - reach), bisect_right(self._sums, total + reach)
        found = [other for one, other in self._starts[low:high] if equal_starts(one, start)]
        place = bisect_left(self._sums, total)
        self._sums.insert(place, total)
        self._starts.insert(place, (start, node))
        return found


@lru_cache(maxsize=64)
def _weights(n: int) -> tuple[Sequence[float], float]:
    """Return weights between 0.5 and 1.5 that no usual symmetry of a task shares, and their sum.

    The sum is a little larger, so that rounding hides no neighbour.
    """
    weights = tuple(0.5 + (0.618033988749895 * (number + 1)) % 1.0 for number in range(n))
    return weights, math.fsum(weights) * 1.01
