"""Which of many tasks is next, without looking at all of them."""

from __future__ import annotations

import heapq
from collections.abc import Collection

TaskKey = tuple[str, int]


class TaskOrder:
    """Tasks by a rank that changes, lowest first; of equals the one that was ranked first ever.

    A heap that holds at least one entry for every ranked task, never above its rank: ranks mostly
    rise, so a rise is noted only when the entry comes up, and the heap does not grow with episodes.
    """

    def __init__(self) -> None:
        self._places: dict[TaskKey, int] = {}
        self._ranks: dict[TaskKey, int] = {}
        self._entries: dict[TaskKey, int] = {}  # the lowest rank a task has in the heap
        self._heap: list[tuple[int, int, TaskKey]] = []

    def put(self, task: TaskKey, rank: int | None) -> None:
        """Rank ``task`` anew; None leaves it out."""
        self._places.setdefault(task, len(self._places))
        if rank is None:
            self._ranks.pop(task, None)
            return
        self._ranks[task] = rank
        if task not in self._entries or rank < self._entries[task]:
            self._push(task)

    def place(self, task: TaskKey) -> int:
        """Return which of equals ``task`` is, counted from 0."""
        return self._places[task]

    def first(self, besides: Collection[TaskKey] = ()) -> TaskKey | None:
        """Return the lowest of all tasks but ``besides``, in logarithmic time for each of these."""
        passed: set[TaskKey] = set()
        found = None
        while self._heap and found is None:
            rank, _, task = heapq.heappop(self._heap)
            if task in passed or rank != self._entries.get(task):
                continue  # a lower entry has taken its place
            if self._ranks.get(task) == rank:
                passed.add(task)
                found = None if task in besides else task
            elif task in self._ranks:
                self._push(task)
            else:
                del self._entries[task]
        for task in passed:
            self._push(task)
        return found

    def _push(self, task: TaskKey) -> None:
        rank = self._entries[task] = self._ranks[task]
        heapq.heappush(self._heap, (rank, self._places[task], task))
