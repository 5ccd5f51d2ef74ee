"""A node of a cluster: made from the head's settings, it runs the head's episodes to the bit."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from proctor.callbacks.base import Callback
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.engine.cluster.cluster_engine import ClusterEngine
from proctor.engine.cluster.messages import (
    EpisodeBatch,
    EpisodeDelivery,
    NodeJoined,
    NodeLost,
    NodeReport,
    RolloutOptions,
)
from proctor.engine.processes.forking import start_fork_server
from proctor.engine.scheduler import Scheduler, SchedulerLimits
from proctor.evaluation.cluster.node import Node, NodeSetup
from proctor.evaluation.preparing import prepare
from proctor.evaluation.run import Evaluation
from proctor.runs.journal import video_path
from proctor.types import EpisodeResult

MakeRun = Callable[..., Evaluation]
SETTINGS = {
    "policy.type": "random",
    "env.type": "fake",
    "env.n_tasks": 2,
    "eval.n_episodes": 3,
    "eval.batch_size": 2,
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the nodes' scratch folders; nothing may be left in it."""
    start_fork_server((), {})  # the fork server's own folder stays until this process ends
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield scratch
    assert not list(scratch.glob("proctor-node-*"))


def order_of(
    folder: Path, settings: dict[str, Any] = SETTINGS, **changes: Any
) -> tuple[NodeSetup, Any]:
    config = build(EvalConfig, settings | {"output_dir": str(folder / "head")})
    prepared = prepare(config)
    protocol = prepared.protocol() | changes
    return NodeSetup(
        config=EvalConfig,
        settings=config.as_dict(),
        protocol=protocol,
        folder=folder,
        torch_threads=None,
    ), prepared


def listen(
    node: Node, until: Callable[[list[NodeReport]], bool], episode_batch: EpisodeBatch | None = None
) -> list[NodeReport]:
    """Exchange messages until the reports suffice."""
    told: list[NodeReport] = []
    end = time.monotonic() + 60
    while not told or not until(told):
        assert time.monotonic() < end
        told.append(node.exchange(episode_batch))
        episode_batch = None
    return told


def ended(told: list[NodeReport]) -> list[EpisodeDelivery]:
    return [delivery for news in told for delivery in news.ended]


def test_a_node_plays_the_episodes_of_the_head_to_the_bit(
    place: Path, tmp_path: Path, run: MakeRun
) -> None:
    here = run(**{name.replace(".", "__"): value for name, value in SETTINGS.items()})
    order, prepared = order_of(tmp_path)
    node = Node(order, cores=2)
    try:
        opened = listen(node, lambda told: told[-1].simulators > 0)
        assert opened[-1].simulators == 2
        episode_batch = EpisodeBatch(tuple(prepared.plan[:4]), RolloutOptions({}))
        told = listen(node, lambda told: len(ended(told)) == 4, episode_batch)
        more = EpisodeBatch(tuple(prepared.plan[4:]), RolloutOptions({}))
        told += listen(node, lambda told: len(ended(told)) == 2, more)
    finally:
        node.close()
    played = {d.result.spec.key: d.result.digest for d in ended(told)}
    assert played == {row.key: row.digest for row in here.rows}
    assert told[-1].effort.steps == sum(d.result.steps for d in ended(told))


class Threads:
    """A cluster of one node in this process."""

    def __init__(self, order: NodeSetup) -> None:
        self._order, self._nodes = order, list[Node]()
        self._caller = ThreadPoolExecutor(1)
        self._calls: set[Future[NodeReport]] = set()

    def start_nodes(self, exclude: Collection[str]) -> list[NodeJoined]:
        if exclude:
            return []
        self._nodes.append(Node(self._order, cores=2))
        return [NodeJoined("seat", "node")]

    def give(self, seat: str, episode_batch: EpisodeBatch | None) -> None:
        self._calls.add(self._caller.submit(self._nodes[0].exchange, episode_batch))

    def poll(self, timeout_s: float) -> list[tuple[str, NodeReport | NodeLost]]:
        told, self._calls = wait(self._calls, timeout_s)
        return [("seat", call.result()) for call in told]

    def close(self) -> None:
        for node in self._nodes:
            node.close()
        self._caller.shutdown()


class Simulators(Callback):
    """Records which worker opened which task."""

    def __init__(self) -> None:
        self.opened: list[tuple[int, int]] = []

    def on_episode_end(self, result: EpisodeResult) -> None:
        worker, task = result.worker, result.spec.task.task_id
        if next((t for w, t in reversed(self.opened) if w == worker), None) != task:
            self.opened.append((worker, task))


def test_a_simulator_stays_open_while_the_head_has_more_of_its_task(
    place: Path, tmp_path: Path
) -> None:
    order, prepared = order_of(tmp_path, SETTINGS | {"eval.n_episodes": 20})
    heard = Simulators()
    cluster_engine = ClusterEngine(Threads(order), tmp_path)
    cluster_engine.set_scheduler(Scheduler(prepared.plan, SchedulerLimits(max_batch=1)), {})
    try:
        cluster_engine.run([heard])
    finally:
        cluster_engine.close()
    assert len(heard.opened) <= 3, "two, and who is done first helps with the other task"


def test_a_film_travels_with_its_episode_and_leaves_nothing(place: Path, tmp_path: Path) -> None:
    from proctor.callbacks.video import VideoOptions

    order, prepared = order_of(tmp_path)
    node = Node(order, cores=1)
    try:
        listen(node, lambda told: told[-1].simulators > 0)
        camera = VideoOptions(tmp_path / "head", tuple(prepared.benchmark.features())[:1])
        spec = prepared.plan[0]
        told = listen(
            node, lambda told: bool(ended(told)), EpisodeBatch((spec,), RolloutOptions({}, camera))
        )
        (delivery,) = ended(told)
        assert list(delivery.files) == [video_path(spec.key)]
        assert delivery.files[video_path(spec.key)][4:8] == b"ftyp"
        assert not list(place.rglob("*.mp4"))
    finally:
        node.close()
    assert not (tmp_path / "head").exists()


def test_a_node_with_another_world_says_what_differs_and_plays_nothing(
    place: Path, tmp_path: Path
) -> None:
    order, _ = order_of(tmp_path, seed=7)
    node = Node(order, cores=1)
    try:
        told = listen(node, lambda told: told[-1].failure is not None)
    finally:
        node.close()
    failure = told[-1].failure
    assert failure is not None
    assert failure.unfit
    assert failure.code == "cluster.node-mismatch"
    assert "seed was 7" in failure.message


def test_a_policy_that_fails_is_told_with_its_kind(place: Path, tmp_path: Path) -> None:
    _, prepared = order_of(tmp_path)
    (tmp_path / "liar.py").write_text(
        "import numpy as np\n"
        "from proctor.policies.base import Policy, PolicySpec\n"
        "class Liar(Policy):\n"
        "    spec = PolicySpec('liar')\n"
        "    def act(self, batch):\n"
        "        return np.full((len(batch.queries), 1, 2), np.nan)\n"
        "def make(config, interface):\n"
        "    return Liar()\n"
    )
    settings = SETTINGS | {"policy.type": "liar:make", "output_dir": str(tmp_path / "head")}
    config = build(EvalConfig, settings)
    protocol = prepare(config).protocol()
    lying = NodeSetup(EvalConfig, config.as_dict(), protocol, tmp_path, torch_threads=None)
    node = Node(lying, cores=1)
    try:
        listen(node, lambda told: told[-1].simulators > 0)
        episode_batch = EpisodeBatch(tuple(prepared.plan[:1]), RolloutOptions({}))
        told = listen(node, lambda told: told[-1].failure is not None, episode_batch)
    finally:
        node.close()
    failure = told[-1].failure
    assert failure is not None
    assert failure.kind == "PolicyError"
    assert not failure.unfit


def test_folders_of_nodes_that_were_killed_are_removed_by_the_next(
    place: Path, tmp_path: Path
) -> None:
    import os

    left = place / "proctor-node-killed"
    left.mkdir()
    (left / ".lock").touch()
    os.utime(left, (1, 1))
    node = Node(order_of(tmp_path)[0], cores=1)
    node.close()
    assert not left.exists()


@pytest.mark.ray  # needs no Ray, but a second of torch
def test_a_checkpoint_that_is_not_there_is_asked_for_and_plays_the_same(
    place: Path, tmp_path: Path, run: MakeRun
) -> None:
    import torch

    from tests.unit.policies.test_policy_engine import SMALL_ACT, checkpoint, play

    path = Path(checkpoint(tmp_path, "act", **SMALL_ACT))
    here = play(run, str(path), eval__n_episodes=2)
    same = json.loads((here.path / "run.json").read_text())["config"]["resolved"]
    config = build(EvalConfig, same | {"output_dir": str(tmp_path / "head")})
    prepared = prepare(config)
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    path.rename(tmp_path / "elsewhere")
    order = NodeSetup(
        EvalConfig,
        config.as_dict(),
        prepared.protocol(),
        tmp_path,
        torch_threads=torch.get_num_threads(),  # as a head sends it: on x86 bits depend on it
    )
    node = Node(order, cores=1)
    try:
        listen(node, lambda told: told[-1].wants_checkpoint)
        node.exchange(None, files)
        listen(node, lambda told: told[-1].simulators > 0)
        episode_batch = EpisodeBatch(tuple(prepared.plan), RolloutOptions({}))
        told = listen(node, lambda told: len(ended(told)) == 2, episode_batch)
    finally:
        node.close()
    played = {d.result.spec.key: d.result.digest for d in ended(told)}
    assert played == {row.key: row.digest for row in here.rows}
