"""Tells a task whose simulator cannot be created from episodes that fail by accident.

If a package or file is missing, every episode of a task fails before its first step for the same
reason. A few such episodes prove it: the run ends, and none of its episodes counts.
"""

from __future__ import annotations

import re

from proctor.engine.task_order import TaskKey
from proctor.errors import SimulatorUnavailable, WorkerError, summarize_traceback
from proctor.types import EpisodeKey, EpisodeResult

_ENOUGH = 3
"""Number of different episodes that must fail, each after all its attempts."""
_MOST_HELD = 10


class StartupFailures:
    """Holds failed episodes back until it is clear why they never began.

    They become ordinary errors once a simulator of their task has opened, or if too many different
    reasons are held.
    """

    def __init__(self) -> None:
        self._opened: set[TaskKey] = set()
        self._failed: dict[str, list[EpisodeKey]] = {}  # by reason; only tasks that never opened
        self._held: list[EpisodeResult] = []

    def opened(self, task: TaskKey) -> list[EpisodeResult]:
        """Note that a simulator of ``task`` opened; return the task's held-back errors."""
        if task in self._opened:
            return []
        self._opened.add(task)
        for reason, keys in self._failed.items():
            self._failed[reason] = [key for key in keys if key[:2] != task]
        return self._release([held for held in self._held if held.spec.task.key == task])

    def failed(self, result: EpisodeResult) -> list[EpisodeResult]:
        """Add an episode that failed before its first step; return what are errors now."""
        assert result.error is not None
        task, summary = result.spec.task, summarize_traceback(result.error)
        if task.key in self._opened:
            return [result]
        reason = re.sub(r"0x[0-9a-fA-F]+|\d+", "#", summary)  # addresses differ, counters may
        keys = self._failed.setdefault(reason, [])
        keys.append(result.spec.key)
        if len(keys) >= _ENOUGH:
            raise SimulatorUnavailable(
                f"no simulator of {task.name} can be opened: {summary}"
            ) from WorkerError(result.error)
        self._held.append(result)
        return self._release(self._held) if len(self._held) > _MOST_HELD else []

    def release_all(self) -> list[EpisodeResult]:
        """Return all results still held back, as errors: no more episodes follow."""
        return self._release(self._held)

    def _release(self, results: list[EpisodeResult]) -> list[EpisodeResult]:
        keys = {result.spec.key for result in results}
        self._held = [held for held in self._held if held.spec.key not in keys]
        return results
