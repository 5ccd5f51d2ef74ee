"""Finds the next of many tasks without scanning all of them."""

from __future__ import annotations

import heapq
from collections.abc import Collection

TaskKey = tuple[str, int]


class TaskOrder:
    """Tasks ordered by a changing rank, lowest first; ties go to the task that was added first.

    A heap holds at least one entry per ranked task, never above the task's rank. Ranks mostly rise,
    so a rise is applied only when its entry reaches the top. The heap does not grow with episodes.
    """

    def __init__(self) -> None:
        self._places: dict[TaskKey, int] = {}
        self._ranks: dict[TaskKey, int] = {}
        self._entries: dict[TaskKey, int] = {}  # lowest rank of each task in the heap
        self._heap: list[tuple[int, int, TaskKey]] = []

    def put(self, task: TaskKey, rank: int | None) -> None:
        """Set the rank of ``task``; None removes it."""
        self._places.setdefault(task, len(self._places))
        if rank is None:
            self._ranks.pop(task, None)
            return
        self._ranks[task] = rank
        if task not in self._entries or rank < self._entries[task]:
            self._push(task)

    def place(self, task: TaskKey) -> int:
        """Return the position of ``task`` among equal ranks, from 0."""
        return self._places[task]

    def first(self, exclude: Collection[TaskKey] = ()) -> TaskKey | None:
        """Return the lowest task that is not in ``exclude``; logarithmic time per excluded task."""
        passed: set[TaskKey] = set()
        found = None
        while self._heap and found is None:
            rank, _, task = heapq.heappop(self._heap)
            if task in passed or rank != self._entries.get(task):
                continue  # replaced by a lower entry
            if self._ranks.get(task) == rank:
                passed.add(task)
                found = None if task in exclude else task
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
