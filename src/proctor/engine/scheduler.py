"""Decides which worker runs which episode, and which requests form a batch. No I/O, no clock."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from proctor.engine.task_order import TaskKey, TaskOrder
from proctor.types import EpisodeKey, EpisodeSpec

_LEAD = 2
"""Number of episodes by which an interleaved task may be ahead of another."""


@dataclass(frozen=True)
class SchedulerLimits:
    """The limits of a scheduler."""

    max_batch: int
    max_parallel_tasks: int = 0  # 0: no bound
    max_attempts: int = 3
    interleave: bool = False
    """Keep all tasks within a few episodes of each other, for runs that may stop early. Simulators
    are opened more often."""
    last_begun: int = -1
    """The last episode index that an earlier session has begun. When interleaving, those rounds are
    completed before another begins: their results may end the run."""
    more_may_come: bool = False
    """Whether more episodes of any task may be added. A worker whose task has no queued episode
    then keeps its simulator open (``starved_tasks``) until ``release_tasks`` says that no more will
    come: asking for episodes is faster than opening another simulator."""


class Scheduler:
    """One queue of episodes over all tasks, for any number of workers.

    A worker is an integer. It is free, or runs one episode. A running worker may wait for actions.
    A worker may hold a task open (a live simulator), also while it is free.
    """

    def __init__(self, specs: Iterable[EpisodeSpec], limits: SchedulerLimits) -> None:
        self._limits = limits
        self._queues: dict[TaskKey, deque[EpisodeSpec]] = {}
        self._running: dict[int, EpisodeSpec] = {}
        self._open: dict[int, TaskKey] = {}
        self._holders: Counter[TaskKey] = Counter()  # number of workers that hold the task open
        self._waiting: dict[int, None] = {}  # workers that need actions, in order
        self._attempts: Counter[EpisodeKey] = Counter()
        self._started: set[int] = set()  # indices of started episodes
        self._dry: set[TaskKey] = set()
        self._refused: set[TaskKey] = set()
        self._queued = 0
        self._task_order = TaskOrder()
        self.add(specs)

    def add(self, specs: Iterable[EpisodeSpec]) -> None:
        """Queue episodes; the attempts of an episode that ended before start at zero."""
        tasks: dict[TaskKey, None] = {}  # a set that keeps the order
        for spec in specs:
            self._queues.setdefault(spec.task.key, deque()).append(spec)
            del self._attempts[spec.key]
            self._queued += 1
            tasks[spec.task.key] = None
        for task in tasks:
            self._rank(task)
        self._dry -= tasks.keys()
        self._refused -= tasks.keys()

    @property
    def starved_tasks(self) -> frozenset[TaskKey]:
        """Tasks that free workers keep open in case more episodes come."""
        return frozenset(self._dry)

    def release_tasks(self, tasks: Iterable[TaskKey]) -> None:
        """Stop waiting for more episodes of ``tasks``."""
        self._refused.update(task for task in tasks if not self._queues.get(task))
        self._dry -= self._refused

    @property
    def done(self) -> bool:
        """Whether every episode has ended."""
        return not self._running and not self._queued

    @property
    def queued(self) -> int:
        """Number of episodes that have not been started."""
        return self._queued

    def queued_of(self, task: TaskKey) -> int:
        """Return the number of episodes of ``task`` that have not been started."""
        return len(self._queues[task])

    def open_task(self, worker: int) -> TaskKey | None:
        """Return the task that ``worker`` holds open."""
        return self._open.get(worker)

    def running(self, worker: int) -> EpisodeSpec | None:
        """Return the episode that ``worker`` runs."""
        return self._running.get(worker)

    def attempts(self, spec: EpisodeSpec) -> int:
        """Return how often ``spec`` has been started."""
        return self._attempts[spec.key]

    def assign(self, worker: int, of: TaskKey | None = None) -> EpisodeSpec | None:
        """Give a free worker its next episode, if possible of its open task; None: it waits.

        A worker without an open task joins the task ``of`` if that is given.
        """
        assert worker not in self._running
        task = self._choose_task(self._open.get(worker, of))
        if task is None:
            return None
        spec = self._queues[task].popleft()
        self._queued -= 1
        self._rank(task)
        self._running[worker] = spec
        self.closed(worker)
        self._open[worker] = task
        self._holders[task] += 1
        self._attempts[spec.key] += 1
        self._started.add(spec.index)
        return spec

    def must_close(self, worker: int) -> bool:
        """Whether a free, idle worker blocks others by keeping its task open."""
        bounded = self._limits.max_parallel_tasks > 0
        own = self._open.get(worker)
        return bounded and own is not None and own not in self._dry and self._queued > 0

    def closed(self, worker: int) -> None:
        """Note that the simulator of ``worker`` is closed."""
        task = self._open.pop(worker, None)
        if task is not None:
            self._holders[task] -= 1
            if not self._holders[task]:
                del self._holders[task]

    def request(self, worker: int) -> None:
        """Note that the episode of ``worker`` needs actions."""
        assert worker in self._running
        assert worker not in self._waiting
        self._waiting[worker] = None

    def next_batch(self) -> list[int]:
        """Take the workers whose requests form the next batch, longest waiting first."""
        batch = list(islice(self._waiting, self._limits.max_batch))
        for worker in batch:
            del self._waiting[worker]
        return batch

    def finish(self, worker: int) -> EpisodeSpec:
        """Note that the episode of ``worker`` ended; the worker is free."""
        return self._running.pop(worker)

    def fail(self, worker: int, *, for_good: bool = False) -> tuple[EpisodeSpec, bool]:
        """Note that ``worker`` and its simulator failed; ``for_good``: do not retry the episode.

        Returns:
            The worker's episode, and whether it will be retried (otherwise it has ended).
        """
        spec = self._running.pop(worker)
        self.closed(worker)
        self._waiting.pop(worker, None)
        again = not for_good and self._attempts[spec.key] < self._limits.max_attempts
        if again:
            self._queues[spec.task.key].appendleft(spec)
            self._queued += 1
            self._rank(spec.task.key)
        return spec, again

    def finish_rounds(self) -> None:
        """Drop episodes of rounds that have not begun, so that all tasks end with equal counts."""
        last = max(self._started | {self._limits.last_begun})
        for task, queue in self._queues.items():
            self._queues[task] = deque(spec for spec in queue if spec.index <= last)
            self._rank(task)
        self._queued = sum(len(queue) for queue in self._queues.values())

    def _choose_task(self, own: TaskKey | None) -> TaskKey | None:
        """Prefer the open task; else choose the task with the most remaining steps per worker."""
        if self._limits.interleave:
            return self._choose_interleaved(own)
        if own is not None and self._queues[own]:
            return own
        if own is not None and self._limits.more_may_come and own not in self._refused:
            self._dry.add(own)
            return None
        alone = own if own is not None and self._holders[own] == 1 else None
        held = [task for task in self._holders if task != alone]  # by others
        candidates = [task for task in held if self._queues[task]]
        if len(held) < (self._limits.max_parallel_tasks or len(self._queues)):
            unheld = self._task_order.first(exclude=set(held))
            candidates += [] if unheld is None else [unheld]

        def left_per_worker(task: TaskKey) -> tuple[float, int]:
            others = self._holders[task] - (task == own)
            return _steps_in(self._queues[task]) / (1 + others), -self._task_order.place(task)

        return max(candidates, key=left_per_worker, default=None)

    def _choose_interleaved(self, own: TaskKey | None) -> TaskKey | None:
        """Prefer the open task unless it is far ahead; else choose the task furthest behind."""
        first = self._task_order.first()
        if first is None:
            return None
        behind = self._queues[first][0].index
        if self._must_wait(behind):
            return None
        if own is not None and self._queues[own]:
            return own if self._queues[own][0].index <= self._furthest(behind) else first
        return first

    def _must_wait(self, index: int) -> bool:
        """Whether a round that an earlier session began must be completed before ``index``."""
        last_begun = self._limits.last_begun
        return index > last_begun and any(
            spec.index <= last_begun for spec in self._running.values()
        )

    def _furthest(self, behind: int) -> int:
        """Return the highest index that may start while an episode of ``behind`` waits."""
        ahead = behind + _LEAD
        return min(ahead, self._limits.last_begun) if behind <= self._limits.last_begun else ahead

    def _rank(self, task: TaskKey) -> None:
        """Update the rank of ``task`` after its queue changed; the lowest rank is chosen first."""
        queue = self._queues[task]
        rank = queue[0].index if queue and self._limits.interleave else -_steps_in(queue)
        self._task_order.put(task, rank if queue else None)


def _steps_in(queue: deque[EpisodeSpec]) -> int:
    """Return the maximum steps of a task's queued episodes: the longest task should start first."""
    return len(queue) * queue[0].task.max_steps if queue else 0
