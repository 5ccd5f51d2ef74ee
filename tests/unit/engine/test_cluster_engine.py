"""The head of a cluster: every leased episode is committed once, whichever nodes are lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from proctor.callbacks.base import Callback
from proctor.engine.cluster import cluster_engine
from proctor.engine.cluster.cluster_engine import ClusterEngine
from proctor.engine.cluster.messages import (
    EpisodeBatch,
    EpisodeDelivery,
    NodeEffort,
    NodeFailure,
    NodeJoined,
    NodeLost,
    NodeReport,
)
from proctor.engine.scheduler import Scheduler, SchedulerLimits
from proctor.errors import PolicyError, WorkerError
from proctor.runs.records import RunProgress
from proctor.types import EpisodeResult, EpisodeSpec, Outcome, Task
from tests.refusals import refuses

SHORT = Task("short", 0, "short", "", max_steps=10, fps=10)
LONG = Task("long", 0, "long", "", max_steps=500, fps=10)


def specs(n: int, *tasks: Task) -> list[EpisodeSpec]:
    return [EpisodeSpec(task, index, index) for task in tasks or (SHORT,) for index in range(n)]


class FakeNode:
    """A node that finishes all its episodes whenever the head asks for a report."""

    def __init__(self, simulators: int = 2) -> None:
        self.simulators = simulators
        self.held: list[EpisodeSpec] = []
        self.given: list[tuple[EpisodeSpec, ...]] = []
        self.steps = 0

    def news(self) -> NodeReport | NodeLost:
        ended = [
            EpisodeDelivery(EpisodeResult(spec, Outcome.SUCCESS, steps=10), {})
            for spec in self.held
        ]
        self.held = []
        self.steps += 10 * len(ended)
        return NodeReport(self.simulators, tuple(ended), NodeEffort(steps=self.steps))


class FakeCluster:
    """A cluster of fake nodes, started on request; ``strike`` may change their reports."""

    def __init__(
        self,
        *seats: str,
        make: Callable[[], FakeNode] = FakeNode,
        strike: Callable[
            [str, NodeReport | NodeLost], NodeReport | NodeLost
        ] = lambda node_id, told: told,
    ) -> None:
        self.seats, self._make, self._strike = list(seats), make, strike
        self.engines: dict[str, FakeNode] = {}
        self.made: Counter[str] = Counter()
        self._asked: list[str] = []
        self.is_closed = False

    def start_nodes(self, exclude: Collection[str]) -> list[NodeJoined]:
        started = [s for s in self.seats if s not in exclude and s not in self.engines]
        for node_id in started:
            self.engines[node_id] = self._make()
            self.made[node_id] += 1
        return [NodeJoined(node_id, f"node {node_id}") for node_id in started]

    def give(self, node_id: str, episode_batch: EpisodeBatch | None) -> None:
        assert node_id not in self._asked
        self._asked.append(node_id)
        if episode_batch is not None:
            self.engines[node_id].held += episode_batch.specs
            self.engines[node_id].given.append(episode_batch.specs)

    def poll(self, timeout_s: float) -> list[tuple[str, NodeReport | NodeLost]]:
        asked, self._asked = self._asked, []
        told = [(node_id, self._strike(node_id, self.engines[node_id].news())) for node_id in asked]
        for node_id, news in told:
            if isinstance(news, NodeLost) or news.failure is not None:
                del self.engines[node_id]
        return told

    def close(self) -> None:
        self.is_closed = True


class ResultCollector(Callback):
    def __init__(self) -> None:
        self.results: list[EpisodeResult] = []
        self.last: RunProgress | None = None

    def on_episode_end(self, result: EpisodeResult) -> None:
        self.results.append(result)

    def on_progress(self, progress: RunProgress) -> None:
        self.last = progress


def play(
    cluster: FakeCluster, plan: list[EpisodeSpec], folder: Path, most_attempts: int = 10
) -> tuple[ResultCollector, list[str]]:
    heard, said = ResultCollector(), []
    engine = ClusterEngine(cluster, folder, said.append)
    engine.set_scheduler(
        Scheduler(plan, SchedulerLimits(max_batch=1, max_attempts=most_attempts)), {}
    )
    engine.run([heard])
    return heard, said


@pytest.fixture(autouse=True)
def check_for_nodes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_engine, "_NODE_CHECK_S", 0.0)


def test_every_episode_is_committed_once_however_often_engines_are_lost(tmp_path: Path) -> None:
    rng = random.Random(0)
    cluster = FakeCluster(
        "a", "b", "c", strike=lambda _, told: NodeLost("killed") if rng.random() < 0.4 else told
    )
    plan = specs(150, SHORT, LONG)
    heard, said = play(cluster, plan, tmp_path, most_attempts=1000)
    assert sorted(r.spec.key for r in heard.results) == sorted(spec.key for spec in plan)
    assert any(result.attempts > 1 for result in heard.results)
    assert any("leased to others" in line for line in said)


def test_an_engine_that_says_a_result_again_is_not_heard_again(tmp_path: Path) -> None:
    class Repeating(FakeNode):
        last: tuple[EpisodeDelivery, ...] = ()

        def news(self) -> NodeReport | NodeLost:
            told = super().news()
            assert isinstance(told, NodeReport)
            again = NodeReport(told.simulators, self.last + told.ended, told.effort)
            self.last = told.ended
            return again

    heard, _ = play(FakeCluster("a", make=Repeating), specs(20), tmp_path)
    assert Counter(r.spec.key for r in heard.results).most_common(1)[0][1] == 1
    assert len(heard.results) == 20


def test_an_episode_that_takes_its_node_along_every_time_is_given_up(tmp_path: Path) -> None:
    plan = specs(5)

    class Fragile(FakeNode):
        def news(self) -> NodeReport | NodeLost:
            if any(spec is plan[2] for spec in self.held):
                return NodeLost("out of memory")
            return super().news()

    heard, _ = play(FakeCluster("a", make=lambda: Fragile(1)), plan, tmp_path, most_attempts=2)
    outcomes = {r.spec.index: r for r in heard.results}
    assert outcomes[2].outcome is Outcome.ERROR
    assert "out of memory" in (outcomes[2].error or "")
    assert len(outcomes) == 5


def test_a_seat_whose_engines_never_play_is_left_alone_and_others_go_on(tmp_path: Path) -> None:
    cluster = FakeCluster(
        "good",
        "bad",
        strike=lambda node_id, told: NodeLost("segfault") if node_id == "bad" else told,
    )
    heard, _ = play(cluster, specs(200), tmp_path)
    assert len(heard.results) == 200
    assert cluster.made["bad"] == 3


def test_without_any_engine_that_plays_the_run_ends_and_says_why(tmp_path: Path) -> None:
    cluster = FakeCluster("bad", strike=lambda node_id, told: NodeLost("segfault"))
    with refuses(WorkerError, "worker.failed") as refused:
        play(cluster, specs(4), tmp_path)
    assert "node bad" in str(refused.value)
    assert "segfault" in str(refused.value)


def test_a_node_that_would_play_something_else_is_left_out(tmp_path: Path) -> None:
    unfit = NodeReport(failure=NodeFailure("mujoco is another", "", "UsageError", unfit=True))
    cluster = FakeCluster(
        "old", "new", strike=lambda node_id, told: unfit if node_id == "old" else told
    )
    heard, said = play(cluster, specs(30), tmp_path)
    assert len(heard.results) == 30
    assert any("node old: mujoco is another" in line for line in said)
    assert cluster.made["old"] == 1


def test_what_a_policy_does_wrong_ends_the_run_as_here(tmp_path: Path) -> None:
    failed = NodeReport(
        2, failure=NodeFailure("NaN in row 3", "", "PolicyError", code="policy.not-finite")
    )
    cluster = FakeCluster("a", strike=lambda node_id, told: failed)
    with refuses(PolicyError, "policy.not-finite") as refused:
        play(cluster, specs(4), tmp_path)
    assert "node a: NaN in row 3" in str(refused.value)


def test_a_node_that_comes_late_is_given_its_share(tmp_path: Path) -> None:
    cluster = FakeCluster("first")

    class Grow(Callback):
        def on_episode_end(self, result: EpisodeResult) -> None:
            cluster.seats = ["first", "second"]

    engine = ClusterEngine(cluster, tmp_path)
    engine.set_scheduler(Scheduler(specs(100), SchedulerLimits(max_batch=1)), {})
    engine.run([Grow()])
    assert sum(map(len, cluster.engines["second"].given)) > 20


def test_the_longest_task_is_leased_first_and_the_last_lots_are_small(tmp_path: Path) -> None:
    cluster = FakeCluster("a", "b")
    play(cluster, specs(60, SHORT, LONG), tmp_path)
    given = cluster.engines["a"].given
    assert given[0][0].task is LONG
    assert len(given[-1]) <= 3 < max(map(len, given)) / 2


def test_a_node_has_episodes_of_no_more_tasks_than_it_has_simulators(tmp_path: Path) -> None:
    tasks = [Task(f"task {i}", i, "many", "", max_steps=10, fps=10) for i in range(5)]
    cluster = FakeCluster("a")
    play(cluster, specs(40, *tasks), tmp_path)
    given = cluster.engines["a"].given
    assert max(map(len, given)) > 10, "some lots are large"
    changes = 2  # batches in which a simulator changes to the next task
    assert (
        sum(len({spec.task.task_id for spec in episode_batch}) > 2 for episode_batch in given)
        <= changes
    )


def test_files_of_an_episode_lie_in_the_run_folder_before_anybody_hears_of_it(
    tmp_path: Path,
) -> None:
    class Filming(FakeNode):
        def news(self) -> NodeReport | NodeLost:
            told = super().news()
            assert isinstance(told, NodeReport)
            ended = [EpisodeDelivery(d.result, {"videos/s_0/e.mp4": b"film"}) for d in told.ended]
            return NodeReport(told.simulators, tuple(ended), told.effort, log=b"said\n")

    class Looks(Callback):
        def on_episode_end(self, result: EpisodeResult) -> None:
            assert (tmp_path / "videos/s_0/e.mp4").read_bytes() == b"film"

    engine = ClusterEngine(FakeCluster("a", make=Filming), tmp_path)
    engine.set_scheduler(Scheduler(specs(3), SchedulerLimits(max_batch=1)), {})
    engine.run([Looks()])
    assert b"said" in (tmp_path / "workers.log").read_bytes()


def test_steps_of_all_nodes_are_one_number_also_of_those_that_are_lost(tmp_path: Path) -> None:
    lost = iter([False] * 6 + [True] + [False] * 1000)
    cluster = FakeCluster(
        "a", "b", strike=lambda _, told: NodeLost("killed") if next(lost) else told
    )
    heard, _ = play(cluster, specs(50), tmp_path)
    assert heard.last is not None
    assert heard.last.steps == 10 * len(heard.results)


class SlowNode(FakeNode):
    """A node whose policy takes a second per episode."""

    def news(self) -> NodeReport | NodeLost:
        told = super().news()
        assert isinstance(told, NodeReport)
        return replace(told, effort=replace(told.effort, infer_s=self.steps / 10))


def test_policies_that_compute_at_once_take_that_much_less_of_the_time(tmp_path: Path) -> None:
    heard, _ = play(FakeCluster("a", "b", make=SlowNode), specs(8), tmp_path)
    assert heard.last is not None
    assert (heard.last.steps, heard.last.infer_s) == (80, 4.0)
