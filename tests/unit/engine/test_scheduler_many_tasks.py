"""The scheduler chooses like one that scans every task, without scanning every task."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.engine.scheduler import Scheduler, SchedulerLimits
from proctor.engine.task_order import TaskKey, TaskOrder
from proctor.types import EpisodeSpec, Task


class Reference:
    """The scheduler's contract, implemented by scanning all queues at every decision."""

    def __init__(self, specs: Iterable[EpisodeSpec], limits: SchedulerLimits) -> None:
        self.limits = limits
        self.queues: dict[TaskKey, deque[EpisodeSpec]] = {}
        self.running: dict[int, EpisodeSpec] = {}
        self.open: dict[int, TaskKey] = {}
        self.attempts: Counter[tuple[str, int, int]] = Counter()
        self.started: set[int] = set()
        self.add(specs)

    def add(self, specs: Iterable[EpisodeSpec]) -> None:
        for spec in specs:
            self.queues.setdefault(spec.task.key, deque()).append(spec)
            del self.attempts[spec.key]

    @property
    def done(self) -> bool:
        return not self.running and not any(self.queues.values())

    def must_close(self, worker: int) -> bool:
        bounded = self.limits.max_parallel_tasks > 0
        return bounded and worker in self.open and any(self.queues.values())

    def assign(self, worker: int) -> EpisodeSpec | None:
        task = self.choose(worker)
        if task is None:
            return None
        spec = self.running[worker] = self.queues[task].popleft()
        self.open[worker] = task
        self.attempts[spec.key] += 1
        self.started.add(spec.index)
        return spec

    def finish(self, worker: int) -> EpisodeSpec:
        return self.running.pop(worker)

    def fail(self, worker: int, *, for_good: bool) -> tuple[EpisodeSpec, bool]:
        spec = self.running.pop(worker)
        self.open.pop(worker, None)
        again = not for_good and self.attempts[spec.key] < self.limits.max_attempts
        if again:
            self.queues[spec.task.key].appendleft(spec)
        return spec, again

    def closed(self, worker: int) -> None:
        self.open.pop(worker, None)

    def finish_rounds(self) -> None:
        last = max(self.started | {self.limits.last_begun})
        for task, queue in self.queues.items():
            self.queues[task] = deque(spec for spec in queue if spec.index <= last)

    def choose(self, worker: int) -> TaskKey | None:
        own = self.open.get(worker)
        if self.limits.interleave:
            waiting = {task: queue[0].index for task, queue in self.queues.items() if queue}
            behind, last_begun = min(waiting.values(), default=0), self.limits.last_begun
            earlier_runs = any(spec.index <= last_begun for spec in self.running.values())
            if not waiting or (behind > last_begun and earlier_runs):
                return None
            furthest = min(behind + 2, last_begun) if behind <= last_begun else behind + 2
            if own in waiting and waiting[own] <= furthest:
                return own
            return min(waiting, key=waiting.__getitem__)
        if own is not None and self.queues[own]:
            return own
        holders = Counter(task for other, task in self.open.items() if other != worker)
        bound = self.limits.max_parallel_tasks or len(self.queues)
        free = [
            task
            for task, queue in self.queues.items()
            if queue and (task in holders or len(holders) < bound)
        ]
        return max(
            free, key=lambda task: len(self.queues[task]) / (1 + holders[task]), default=None
        )


def episodes_of(task: int, n: int) -> list[EpisodeSpec]:
    of = Task("suite", task, f"task-{task}", "", 10, 10)
    return [EpisodeSpec(of, index, index) for index in range(n)]


@settings(max_examples=300, deadline=None)
@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    later=st.lists(st.tuples(st.integers(0, 14), st.integers(0, 4)), max_size=4),
    limits=st.builds(
        SchedulerLimits,
        max_batch=st.just(1),
        max_parallel_tasks=st.integers(0, 3),
        max_attempts=st.integers(1, 3),
        interleave=st.booleans(),
        last_begun=st.integers(-1, 3),
    ),
    n_workers=st.integers(1, 6),
    events=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=200),
)
def test_decisions_are_those_of_looking_at_every_task(
    counts: list[int],
    later: list[tuple[int, int]],
    limits: SchedulerLimits,
    n_workers: int,
    events: list[tuple[int, int]],
) -> None:
    plan = [spec for task, n in enumerate(counts) for spec in episodes_of(task, n)]
    ours, reference = Scheduler(plan, limits), Reference(plan, limits)
    for kind, number in events:
        worker = number % n_workers
        if kind == 9 and later:  # a second phase, like video replay
            more = episodes_of(*later.pop())
            ours.add(more)
            reference.add(more)
        elif kind == 8 and number == 0:
            ours.finish_rounds()
            reference.finish_rounds()
        elif worker not in reference.running:
            assert ours.assign(worker) == reference.assign(worker)
            assert ours.must_close(worker) == reference.must_close(worker)
            if kind == 7:
                ours.closed(worker)
                reference.closed(worker)
        elif kind < 5:
            assert ours.finish(worker) == reference.finish(worker)
        else:
            for_good = kind == 9
            ended = ours.fail(worker, for_good=for_good)
            assert ended == reference.fail(worker, for_good=for_good)
        assert ours.done == reference.done


@settings(max_examples=300, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 5), st.none() | st.integers(-4, 4), st.sets(st.integers(0, 5))),
        max_size=60,
    )
)
def test_a_ranking_gives_the_lowest_and_of_equals_the_first(
    changes: list[tuple[int, int | None, set[int]]],
) -> None:
    task_order = TaskOrder()
    ranks: dict[TaskKey, int | None] = {}
    for number, rank, others in changes:
        task_order.put(("suite", number), rank)
        ranks[("suite", number)] = rank
        exclude = [("suite", other) for other in others]
        left = [(r, list(ranks).index(t), t) for t, r in ranks.items() if r is not None]
        left = [entry for entry in left if entry[2] not in exclude]
        assert task_order.first(exclude) == (min(left)[2] if left else None)


class Counting(deque[EpisodeSpec]):
    """A queue that counts how often it is read."""

    looks = 0

    def __len__(self) -> int:
        Counting.looks += 1
        return super().__len__()


def looks_of_a_run(n_tasks: int, n_episodes: int, *, interleave: bool) -> float:
    """Return how often queues are read per episode of a run with two workers."""
    plan = [spec for task in range(n_tasks) for spec in episodes_of(task, n_episodes)]
    scheduler = Scheduler(plan, SchedulerLimits(max_batch=1, interleave=interleave))
    for task, queue in scheduler._queues.items():
        scheduler._queues[task] = Counting(queue)
    Counting.looks = 0
    while not scheduler.done:
        workers = [worker for worker in (0, 1) if scheduler.assign(worker) is not None]
        for worker in workers:
            scheduler.finish(worker)
    return Counting.looks / len(plan)


def test_a_decision_looks_at_as_many_queues_with_2000_tasks_as_with_20() -> None:
    for interleave in (False, True):
        few = looks_of_a_run(20, 3, interleave=interleave)
        many = looks_of_a_run(2000, 3, interleave=interleave)
        assert many <= few + 1
        assert few < 12


def test_the_ranking_does_not_grow_with_the_episodes_of_a_task() -> None:
    scheduler = Scheduler(episodes_of(0, 5000), SchedulerLimits(max_batch=1))
    while not scheduler.done:
        scheduler.assign(0)
        scheduler.finish(0)
    assert len(scheduler._task_order._heap) < 5
