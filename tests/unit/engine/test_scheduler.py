"""The scheduler: every episode runs once, within the limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.engine.scheduler import Scheduler, SchedulerLimits
from proctor.types import EpisodeSpec, Task


def specs(counts: list[int]) -> list[EpisodeSpec]:
    tasks = [Task("suite", i, f"task-{i}", "", 10, 10) for i in range(len(counts))]
    return [
        EpisodeSpec(task, index, index)
        for task, n in zip(tasks, counts, strict=True)
        for index in range(n)
    ]


class Simulation:
    """Drives a scheduler with workers that act by random choices."""

    def __init__(self, scheduler: Scheduler, n_workers: int, limits: SchedulerLimits) -> None:
        self.scheduler = scheduler
        self.limits = limits
        self.free = set(range(n_workers))
        self.simulating: set[int] = set()
        self.waiting: set[int] = set()
        self.ended: Counter[tuple[str, int, int]] = Counter()
        self.starts: Counter[tuple[str, int, int]] = Counter()
        self.open: dict[int, tuple[str, int]] = {}

    def assign_all(self) -> None:
        for worker in sorted(self.free):
            held = dict(self.open)
            spec = self.scheduler.assign(worker)
            if spec is not None:
                self.free.discard(worker)
                self.simulating.add(worker)
                self.starts[spec.key] += 1
                self.open[worker] = spec.task.key
            elif self.scheduler.must_close(worker):
                self.scheduler.closed(worker)
                del self.open[worker]
            limit = self.limits.max_parallel_tasks
            assert not limit or len(set(self.open.values())) <= limit, held

    def act(self, choice: int) -> None:
        """Let one worker finish, fail or request, or let the policy reply."""
        busy = sorted(self.simulating)
        kind = choice % 4
        if kind == 3 or not busy:
            self.answer()
            return
        worker = busy[(choice // 4) % len(busy)]
        self.simulating.discard(worker)
        if kind == 0:
            self.ended[self.scheduler.finish(worker).key] += 1
            self.free.add(worker)
        elif kind == 1:
            self.waiting.add(worker)
            self.scheduler.request(worker)
        else:
            self.fail(worker)

    def fail(self, worker: int) -> None:
        spec, again = self.scheduler.fail(worker)
        del self.open[worker]
        self.waiting.discard(worker)
        if not again:
            self.ended[spec.key] += 1
        self.free.add(worker)

    def answer(self) -> None:
        batch = self.scheduler.next_batch()
        assert len(batch) <= self.limits.max_batch
        assert set(batch) <= self.waiting
        self.waiting -= set(batch)
        self.simulating |= set(batch)


@settings(max_examples=300, deadline=None)
@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    n_workers=st.integers(1, 5),
    max_batch=st.integers(1, 4),
    max_parallel_tasks=st.integers(0, 3),
    max_attempts=st.integers(1, 3),
    choices=st.lists(st.integers(0, 2**16), max_size=150),
)
def test_every_episode_ends_exactly_once_in_any_order_of_events(
    counts: list[int],
    n_workers: int,
    max_batch: int,
    max_parallel_tasks: int,
    max_attempts: int,
    choices: list[int],
) -> None:
    limits = SchedulerLimits(max_batch, max_parallel_tasks, max_attempts)
    plan = specs(counts)
    world = Simulation(Scheduler(plan, limits), n_workers, limits)
    for choice in choices:
        world.assign_all()
        world.act(choice)
    budget = 10 * len(plan) * max_attempts + 20
    while not world.scheduler.done:  # from here on nothing fails: the run must end
        budget -= 1
        assert budget > 0, "starved"
        world.assign_all()
        world.act(0 if world.simulating else 3)
    assert world.ended == Counter(spec.key for spec in plan)
    assert all(n <= max_attempts for n in world.starts.values())
    assert world.scheduler.next_batch() == []


def test_requests_are_answered_longest_waiting_first() -> None:
    scheduler = Scheduler(specs([4]), SchedulerLimits(max_batch=2))
    for worker in range(4):
        scheduler.assign(worker)
    for worker in (2, 0, 3, 1):
        scheduler.request(worker)
    assert scheduler.next_batch() == [2, 0]
    assert scheduler.next_batch() == [3, 1]


def test_a_worker_stays_with_its_task_while_episodes_of_it_are_left() -> None:
    scheduler = Scheduler(specs([3, 3]), SchedulerLimits(max_batch=1))
    seen = []
    for _ in range(6):
        spec = scheduler.assign(0)
        assert spec is not None
        seen.append(spec.task.task_id)
        scheduler.finish(0)
    assert seen == [0, 0, 0, 1, 1, 1]


def test_workers_spread_over_tasks_and_then_help_with_the_last() -> None:
    scheduler = Scheduler(specs([2, 4]), SchedulerLimits(max_batch=1))
    first, second = scheduler.assign(0), scheduler.assign(1)
    assert first is not None
    assert second is not None
    assert {first.task.task_id, second.task.task_id} == {0, 1}
    third = scheduler.assign(2)
    assert third is not None
    assert third.task.task_id == 1


def test_a_broken_worker_does_not_stay_in_the_batch() -> None:
    scheduler = Scheduler(specs([2]), SchedulerLimits(max_batch=4))
    scheduler.assign(0)
    scheduler.assign(1)
    scheduler.request(0)
    scheduler.request(1)
    scheduler.fail(0)
    assert scheduler.next_batch() == [1]


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_an_episode_that_keeps_breaking_is_given_up_after_its_attempts(max_attempts: int) -> None:
    scheduler = Scheduler(specs([1]), SchedulerLimits(max_batch=1, max_attempts=max_attempts))
    for attempt in range(1, max_attempts + 1):
        assert scheduler.assign(0) is not None
        _, again = scheduler.fail(0)
        assert again == (attempt < max_attempts)
    assert scheduler.done


def test_one_parallel_task_means_the_second_opens_only_when_the_first_is_closed_everywhere() -> (
    None
):
    scheduler = Scheduler(specs([2, 1]), SchedulerLimits(max_batch=1, max_parallel_tasks=1))
    scheduler.assign(0)
    scheduler.assign(1)
    scheduler.finish(1)
    assert scheduler.assign(1) is None
    assert scheduler.must_close(1)
    scheduler.closed(1)
    assert scheduler.assign(1) is None, "worker 0 still has task 0 open"
    scheduler.finish(0)
    spec = scheduler.assign(0)
    assert spec is not None
    assert spec.task.task_id == 1


def test_an_episode_that_is_added_again_is_as_good_as_new() -> None:
    scheduler = Scheduler(specs([1]), SchedulerLimits(max_batch=1, max_attempts=1))
    spec = scheduler.assign(0)
    scheduler.finish(0)
    assert scheduler.done
    scheduler.add([spec])
    assert not scheduler.done
    assert scheduler.assign(0) == spec
    assert scheduler.attempts(spec) == 1


def test_a_worker_that_is_fed_keeps_its_task_until_nothing_more_of_it_is_to_be_had() -> None:
    scheduler = Scheduler(specs([1, 3]), SchedulerLimits(max_batch=1, more_may_come=True))
    spec = scheduler.assign(0, of=("suite", 0))
    assert spec is not None
    scheduler.finish(0)
    assert scheduler.assign(0) is None
    assert scheduler.starved_tasks == {spec.task.key}
    scheduler.add([replace(spec, index=1)])
    assert not scheduler.starved_tasks
    again = scheduler.assign(0)
    assert again is not None
    assert again.task == spec.task
    scheduler.finish(0)
    assert scheduler.assign(0) is None
    scheduler.release_tasks(scheduler.starved_tasks)
    other = scheduler.assign(0)
    assert other is not None
    assert other.task != spec.task


def test_nothing_is_refused_that_has_come_meanwhile() -> None:
    scheduler = Scheduler(specs([1, 1]), SchedulerLimits(max_batch=1, more_may_come=True))
    spec = scheduler.assign(0)
    assert spec is not None
    scheduler.finish(0)
    assert scheduler.assign(0) is None
    scheduler.add([replace(spec, index=1)])
    scheduler.release_tasks([spec.task.key])
    assert scheduler.assign(0) == replace(spec, index=1)
    scheduler.finish(0)
    assert scheduler.assign(0) is None
    assert scheduler.starved_tasks == {spec.task.key}


def test_one_that_waits_for_more_of_its_task_is_not_asked_to_close_it() -> None:
    limits = SchedulerLimits(max_batch=1, max_parallel_tasks=1, more_may_come=True)
    scheduler = Scheduler(specs([1, 1]), limits)
    scheduler.assign(0)
    scheduler.finish(0)
    assert scheduler.assign(0) is None
    assert not scheduler.must_close(0)
    scheduler.release_tasks(scheduler.starved_tasks)
    assert scheduler.assign(0) is not None, "it opens the other task in place of its own"
