"""A task whose simulator cannot be opened here, told from an episode that broke.

Where a package or a file is missing, every episode of a task fails before its first step, for one
reason. A few are enough to know that: the run ends, and nothing of it is counted.
"""

from __future__ import annotations

import re

from proctor.engine.task_order import TaskKey
from proctor.errors import SimulatorUnavailable, WorkerError, summarize_traceback
from proctor.types import EpisodeKey, EpisodeResult

_ENOUGH = 3
"""How many different episodes, each tried as often as any, show that it is not an accident."""
_MOST_HELD = 10


class StartupFailures:
    """Holds back episodes that never began until it is clear what they are.

    They are errors among others once their task has opened, or when too many reasons are given for
    any to be the reason.
    """

    def __init__(self) -> None:
        self._opened: set[TaskKey] = set()
        self._failed: dict[str, list[EpisodeKey]] = {}  # by reason, of tasks that never opened
        self._held: list[EpisodeResult] = []

    def opened(self, task: TaskKey) -> list[EpisodeResult]:
        """Note that a simulator of ``task`` was opened; return its errors held back until now."""
        if task in self._opened:
            return []
        self._opened.add(task)
        for reason, keys in self._failed.items():
            self._failed[reason] = [key for key in keys if key[:2] != task]
        return self._release([held for held in self._held if held.spec.task.key == task])

    def failed(self, result: EpisodeResult) -> list[EpisodeResult]:
        """Take an episode that was given up before its first step; return what is an error now.

        Raises:
            CannotOpen: the same reason has ended enough episodes of tasks that never opened.
        """
        assert result.error is not None
        task, said = result.spec.task, summarize_traceback(result.error)
        if task.key in self._opened:
            return [result]
        reason = re.sub(r"0x[0-9a-fA-F]+|\d+", "#", said)  # addresses differ, counters may
        keys = self._failed.setdefault(reason, [])
        keys.append(result.spec.key)
        if len(keys) >= _ENOUGH:
            raise SimulatorUnavailable(
                f"no simulator of {task.name} can be opened: {said}"
            ) from WorkerError(result.error)
        self._held.append(result)
        return self._release(self._held) if len(self._held) > _MOST_HELD else []

    def rest(self) -> list[EpisodeResult]:
        """Return what is still held back: errors, since no more episodes come."""
        return self._release(self._held)

    def _release(self, results: list[EpisodeResult]) -> list[EpisodeResult]:
        keys = {result.spec.key for result in results}
        self._held = [held for held in self._held if held.spec.key not in keys]
        return results
