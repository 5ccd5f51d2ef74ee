"""Who runs what next, and which requests form the next batch. Pure decisions: no I/O, no clock."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from proctor.engine.task_order import TaskKey, TaskOrder
from proctor.types import EpisodeKey, EpisodeSpec

_LEAD = 2
"""How many episodes a task may be ahead of another when they are interleaved."""


@dataclass(frozen=True)
class SchedulerLimits:
    """The limits a scheduler keeps."""

    max_batch: int
    max_parallel_tasks: int = 0  # 0: no bound
    max_attempts: int = 3
    interleave: bool = False
    """Keep all tasks within a few episodes of each other, at the price of opening simulators more
    often: for runs that may be stopped early."""
    begun: int = -1
    """The last index that an earlier session has begun. When interleaving, what is left of those
    rounds ends before another one begins: it may show that none is needed."""
    fed: bool = False
    """More may be added of any task: a worker whose task has run dry keeps it open until that has
    been asked for in vain (``dry``, ``refuse``). To open another takes longer than to ask."""


class Scheduler:
    """One queue of episodes over all tasks, for any number of workers.

    A worker is an integer. It is free, or runs one episode; while it runs, it may be waiting for
    actions. It may hold a task open (a live simulator), also when it is free.
    """

    def __init__(self, specs: Iterable[EpisodeSpec], bounds: SchedulerLimits) -> None:
        self._bounds = bounds
        self._queues: dict[TaskKey, deque[EpisodeSpec]] = {}
        self._running: dict[int, EpisodeSpec] = {}
        self._open: dict[int, TaskKey] = {}
        self._holders: Counter[TaskKey] = Counter()  # how many workers have it open
        self._waiting: deque[int] = deque()
        self._attempts: Counter[EpisodeKey] = Counter()
        self._started: set[int] = set()  # indices of which an episode has been started
        self._dry: set[TaskKey] = set()
        self._refused: set[TaskKey] = set()
        self._queued = 0
        self._task_order = TaskOrder()
        self.add(specs)

    def add(self, specs: Iterable[EpisodeSpec]) -> None:
        """Queue episodes; one that has ended before is as good as new."""
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
    def dry(self) -> frozenset[TaskKey]:
        """Tasks that free workers keep open in the hope for more."""
        return frozenset(self._dry)

    def refuse(self, tasks: Iterable[TaskKey]) -> None:
        """Let go of tasks that have run dry: nothing more of them is to be had."""
        self._refused.update(task for task in tasks if not self._queues.get(task))
        self._dry -= self._refused

    @property
    def done(self) -> bool:
        """Whether every episode has ended."""
        return not self._running and not self._queued

    @property
    def queued(self) -> int:
        """How many episodes nobody has begun."""
        return self._queued

    def left_of(self, task: TaskKey) -> int:
        """Return how many episodes of ``task`` nobody has begun."""
        return len(self._queues[task])

    def held(self, worker: int) -> TaskKey | None:
        """Return the task that ``worker`` has open."""
        return self._open.get(worker)

    def running(self, worker: int) -> EpisodeSpec | None:
        """Return the episode that ``worker`` runs."""
        return self._running.get(worker)

    def attempts(self, spec: EpisodeSpec) -> int:
        """Return how often ``spec`` has been started."""
        return self._attempts[spec.key]

    def assign(self, worker: int, of: TaskKey | None = None) -> EpisodeSpec | None:
        """Give a free worker its next episode, of its open task if there is one; None: wait.

        One that has none open may be one more for a task, ``of`` which others have.
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
        """Whether a free worker with nothing to do holds up others by keeping its task open."""
        bounded = self._bounds.max_parallel_tasks > 0
        own = self._open.get(worker)
        return bounded and own is not None and own not in self._dry and self._queued > 0

    def closed(self, worker: int) -> None:
        """Note that ``worker`` has no simulator any more."""
        task = self._open.pop(worker, None)
        if task is not None:
            self._holders[task] -= 1
            if not self._holders[task]:
                del self._holders[task]

    def request(self, worker: int) -> None:
        """Note that the episode of ``worker`` needs actions."""
        assert worker in self._running
        assert worker not in self._waiting
        self._waiting.append(worker)

    def next_batch(self) -> list[int]:
        """Take the workers whose requests are answered next, longest waiting first."""
        size = min(len(self._waiting), self._bounds.max_batch)
        return [self._waiting.popleft() for _ in range(size)]

    def finish(self, worker: int) -> EpisodeSpec:
        """Note that the episode of ``worker`` ended; the worker is free."""
        return self._running.pop(worker)

    def fail(self, worker: int, *, for_good: bool = False) -> tuple[EpisodeSpec, bool]:
        """Note that ``worker`` broke, with its simulator; ``for_good``: another try is no use.

        Returns:
            The episode it ran and whether that one will be tried again (else it has ended).
        """
        spec = self._running.pop(worker)
        self.closed(worker)
        if worker in self._waiting:
            self._waiting.remove(worker)
        again = not for_good and self._attempts[spec.key] < self._bounds.max_attempts
        if again:
            self._queues[spec.task.key].appendleft(spec)
            self._queued += 1
            self._rank(spec.task.key)
        return spec, again

    def finish_rounds(self) -> None:
        """Start no episode of an index that none has yet: all tasks end with equally many."""
        last = max(self._started | {self._bounds.begun})
        for task, queue in self._queues.items():
            self._queues[task] = deque(spec for spec in queue if spec.index <= last)
            self._rank(task)
        self._queued = sum(len(queue) for queue in self._queues.values())

    def _choose_task(self, own: TaskKey | None) -> TaskKey | None:
        """Prefer the open task; else the one with most steps left per worker that has it."""
        if self._bounds.interleave:
            return self._choose_interleaved(own)
        if own is not None and self._queues[own]:
            return own
        if own is not None and self._bounds.fed and own not in self._refused:
            self._dry.add(own)
            return None
        alone = own if own is not None and self._holders[own] == 1 else None
        held = [task for task in self._holders if task != alone]  # by others
        candidates = [task for task in held if self._queues[task]]
        if len(held) < (self._bounds.max_parallel_tasks or len(self._queues)):
            unheld = self._task_order.first(besides=set(held))
            candidates += [] if unheld is None else [unheld]

        def left_per_worker(task: TaskKey) -> tuple[float, int]:
            others = self._holders[task] - (task == own)
            return _steps_in(self._queues[task]) / (1 + others), -self._task_order.place(task)

        return max(candidates, key=left_per_worker, default=None)

    def _choose_interleaved(self, own: TaskKey | None) -> TaskKey | None:
        """Prefer the open task while it is not far ahead; else the one that is furthest behind."""
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
        """Whether a round that an earlier session has begun is still to be completed before."""
        begun = self._bounds.begun
        return index > begun and any(spec.index <= begun for spec in self._running.values())

    def _furthest(self, behind: int) -> int:
        """Return the highest index that may be started while an episode of ``behind`` waits."""
        ahead = behind + _LEAD
        return min(ahead, self._bounds.begun) if behind <= self._bounds.begun else ahead

    def _rank(self, task: TaskKey) -> None:
        """Note that the queue of ``task`` has changed: the lowest rank is chosen first."""
        queue = self._queues[task]
        rank = queue[0].index if queue and self._bounds.interleave else -_steps_in(queue)
        self._task_order.put(task, rank if queue else None)


def _steps_in(queue: deque[EpisodeSpec]) -> int:
    """Return how long the episodes of one task may take: what ends last should begin first."""
    return len(queue) * queue[0].task.max_steps if queue else 0
