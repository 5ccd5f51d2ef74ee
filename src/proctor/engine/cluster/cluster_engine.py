"""The engine of a cluster's head: leases episodes to nodes and commits each result once.

Each node's own engine decides about its episodes: retries, divergence and inference. The head knows
its leases by the scheduler's slots. The leases of a lost node go to other nodes, which produce the
same bits.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proctor import errors
from proctor.callbacks.base import Callback
from proctor.callbacks.staged_episodes import RecordingOptions, explaining_write_errors
from proctor.callbacks.video import VideoOptions
from proctor.engine.cluster.messages import (
    Cluster,
    EpisodeBatch,
    EpisodeDelivery,
    NodeEffort,
    NodeFailure,
    NodeLost,
    NodeReport,
    RolloutOptions,
)
from proctor.engine.failures import errored_result
from proctor.engine.scheduler import Scheduler
from proctor.engine.task_order import TaskKey
from proctor.errors import WorkerError, strip_control_codes
from proctor.features import Array
from proctor.runs.records import RunProgress
from proctor.types import EpisodeKey, EpisodeSpec

_POLL_S = 0.2
_NODE_CHECK_S = 2.0
"""Seconds between two checks for new nodes."""
_PATIENCE_S = 60.0
"""Seconds to wait for a node while there is none."""
_MAX_FRUITLESS_STARTS = 3
"""How often a node may be lost before its first episode ends."""
_MAX_AHEAD = 64
"""Maximum number of queued episodes per simulator of a node: enough for the fastest simulators
until the node's next report."""
_RAISED = {
    kind.__name__: kind
    for kind in (
        errors.SimulatorUnavailable,
        errors.PluginError,
        errors.PolicyError,
        errors.RunFolderError,
        errors.WorkerError,
    )
}

LogLine = Callable[[str], None]


@dataclass
class _NodeState:
    name: str
    number: int
    """Number of the node among all that ever joined."""
    first_worker: int = 0
    """Number of its first simulator among all of the run."""
    slots: list[int] = field(default_factory=list)
    """A slot of the scheduler per simulator; the slot's task is the one the simulator has open."""
    leased: dict[EpisodeKey, int] = field(default_factory=dict)
    """Slots of all leased episodes, including those that are queued on the node."""
    max_reported: int = 0
    """Maximum number of episodes in one of its reports."""
    delivered: bool = False
    asked: bool = False


class ClusterEngine:
    """Runs the episodes of a scheduler, like ``Engine``, on all nodes of a cluster."""

    def __init__(self, cluster: Cluster, folder: Path, say: LogLine = lambda line: None) -> None:
        """Write the files of episodes into ``folder``, and ``say`` which nodes join and leave."""
        self._cluster, self._folder, self._say = cluster, folder, say
        self._scheduler: Scheduler
        self._environment: Mapping[str, str] = {}
        self._callbacks: Sequence[Callback] = ()
        self._options = RolloutOptions({})
        self._actions: Mapping[EpisodeKey, Array] = {}
        self._nodes: dict[str, _NodeState] = {}
        self._fruitless_starts: Counter[str] = Counter()
        self._unfit: dict[str, str] = {}  # nodes that cannot run episodes, and why
        self._slots, self._numbers = itertools.count(), itertools.count()
        self._workers = 0  # of all nodes that ever joined
        self._most_open = 1  # maximum number of nodes at a time
        self._finished: list[EpisodeDelivery] = []  # not yet committed
        self._efforts: dict[int, NodeEffort] = {}  # by number of node
        self._checked_at = float("-inf")
        self._alone_since: float | None = None
        self._progress_at = 0.0
        self._begin_counting()

    def set_scheduler(self, scheduler: Scheduler, environment: Mapping[str, str]) -> None:
        """Run the episodes of ``scheduler`` from now on, by workers with these variables."""
        self._scheduler, self._environment = scheduler, environment

    def run(
        self,
        callbacks: Sequence[Callback],
        should_stop: Callable[[], bool] = lambda: False,
        camera: VideoOptions | None = None,
        actions: Mapping[EpisodeKey, Array] | None = None,
        recording: RecordingOptions | None = None,
    ) -> None:
        """Run until all episodes have ended, or until ``should_stop`` and the begun rounds end."""
        self._callbacks, self._actions = callbacks, actions or {}
        self._options = RolloutOptions(dict(self._environment), camera, recording)
        self._begin_counting()
        stopping = False
        try:
            while not self._scheduler.done:
                self._start_nodes()
                self._lease()
                for node_id, report in self._cluster.poll(_POLL_S):
                    self._on_report(node_id, report)
                self._lease()  # before slow work: nodes do not wait for the disk
                self._commit_finished()
                if not stopping and should_stop():
                    stopping = True
                    self._scheduler.finish_rounds()
                self._send_progress()
        finally:
            self._commit_finished()
            self._send_progress(force=True)

    def close(self) -> None:
        """End all nodes' engines."""
        self._nodes.clear()
        self._cluster.close()

    def progress(self) -> RunProgress:
        """Return the progress of all nodes together."""
        done = sum(self._efforts.values(), NodeEffort())
        return done.since(self._before, time.monotonic() - self._started_at, self._most_open)

    def _begin_counting(self) -> None:
        self._started_at = time.monotonic()
        self._before = sum(self._efforts.values(), NodeEffort())

    def _start_nodes(self) -> None:
        """Check for new nodes from time to time; a node that joins late or again is used."""
        now = time.monotonic()
        if now - self._checked_at < _NODE_CHECK_S:
            return
        self._checked_at = now
        for joined in self._cluster.start_nodes(exclude={*self._nodes, *self._unfit}):
            self._nodes[joined.node_id] = _NodeState(joined.name, next(self._numbers))
        if self._nodes:
            self._alone_since = None
            return
        self._alone_since = self._alone_since or now
        if self._unfit:
            raise WorkerError(f"no node can run these episodes: {next(iter(self._unfit.values()))}")
        if now - self._alone_since > _PATIENCE_S:
            raise WorkerError(
                f"the cluster had no node for {_PATIENCE_S:g} s; finished episodes are kept: start "
                "the cluster, then run again with --resume"
            )

    def _lease(self) -> None:
        """Send every node that is due its next batch, or ask it for a report."""
        for node_id, node in self._nodes.items():
            if not node.asked:
                node.asked = True
                episode_batch = self._batch_for(node)
                self._cluster.give(node_id, episode_batch)

    def _batch_for(self, node: _NodeState) -> EpisodeBatch | None:
        """Lease episodes that keep the node busy until its next report; near the end, its share."""
        specs = (*self._first_episodes(node), *self._queued_ahead(node))
        if not specs:
            return None
        again = {s.key: self._actions[s.key] for s in specs if s.key in self._actions}
        return EpisodeBatch(specs, self._options, again)

    def _first_episodes(self, node: _NodeState) -> Iterator[EpisodeSpec]:
        """Lease one episode to each idle simulator, if possible of the task it has open."""
        for slot in node.slots:
            idle = self._scheduler.running(slot) is None
            if idle and (spec := self._leased(node, slot)) is not None:
                yield spec

    def _queued_ahead(self, node: _NodeState) -> Iterator[EpisodeSpec]:
        """Lease episodes to queue on the node, evenly over the tasks that its simulators have open.

        An episode of another task would make the node open a simulator.
        """
        scheduler, simulators = self._scheduler, len(node.slots)
        ahead = min(max(simulators, 2 * node.max_reported), _MAX_AHEAD * simulators)
        share = scheduler.queued // (2 * len(self._nodes))  # batches shrink towards the end
        simulators_of = Counter(
            task for slot in node.slots if (task := scheduler.open_task(slot)) is not None
        )
        leased_of = Counter((suite, task) for suite, task, _ in node.leased)
        for _ in range(simulators + min(ahead, share) - len(node.leased)):
            tasks = [task for task in simulators_of if scheduler.queued_of(task)]
            scarce = min(
                tasks, key=lambda task: leased_of[task] / simulators_of[task], default=None
            )
            if scarce is None:
                return
            spec = self._leased(node, next(self._slots), scarce)
            if spec is None:
                return
            leased_of[spec.task.key] += 1
            yield spec

    def _leased(self, node: _NodeState, slot: int, of: TaskKey | None = None) -> EpisodeSpec | None:
        spec = self._scheduler.assign(slot, of)
        if spec is not None:
            node.leased[spec.key] = slot
        return spec

    def _on_report(self, node_id: str, report: NodeReport | NodeLost) -> None:
        node = self._nodes[node_id]
        node.asked = False
        if isinstance(report, NodeLost):
            self._lost(node_id, report.reason)
            return
        if report.simulators and not node.slots:
            node.slots = [next(self._slots) for _ in range(report.simulators)]
            node.first_worker = self._workers
            self._workers += report.simulators
            opened = sum(bool(other.slots) for other in self._nodes.values())
            self._most_open = max(self._most_open, opened)
            self._say(f"{node.name}: {count_text(report.simulators, 'simulator')}")
        self._efforts[node.number] = report.effort
        self._keep_log(report.log)
        self._take(node, report.ended)
        if node.delivered:
            del self._fruitless_starts[node_id]
        if report.failure is not None:
            self._failed(node_id, report.failure)

    def _take(self, node: _NodeState, ended: Sequence[EpisodeDelivery]) -> None:
        """Accept the results of leased episodes; a result without a lease was accepted before."""
        for delivery in ended:
            slot = node.leased.pop(delivery.result.spec.key, None)
            if slot is None:
                continue
            spec = self._scheduler.finish(slot)
            delivery.result.attempts += self._scheduler.attempts(spec) - 1
            delivery.result.worker += node.first_worker
            if slot not in node.slots:
                self._scheduler.closed(slot)
            self._finished.append(delivery)
            node.delivered = True
        node.max_reported = max(node.max_reported, len(ended))

    def _failed(self, node_id: str, failure: NodeFailure) -> None:
        """Exclude a node that could not start; a failure after that ends the run."""
        node = self._nodes[node_id]
        text = f"{node.name}: {failure.message}"
        if not failure.unfit:
            kind = _RAISED.get(failure.kind, WorkerError)
            raise kind(text, code=failure.code) from WorkerError(failure.cause)
        self._say(f"left out {text}")
        self._unfit[node_id] = text
        self._give_back(node_id, failure.message)

    def _lost(self, node_id: str, reason: str) -> None:
        node = self._nodes[node_id]
        self._fruitless_starts[node_id] += not node.delivered
        back = count_text(len(node.leased), "episode")
        self._say(f"lost {node.name} ({reason}); leased to others: {back}")
        if self._fruitless_starts[node_id] >= _MAX_FRUITLESS_STARTS:
            self._unfit[node_id] = f"{node.name}: lost {_MAX_FRUITLESS_STARTS} times: {reason}"
        self._give_back(node_id, reason)
        self._checked_at = float("-inf")  # another node may replace it at once

    def _give_back(self, node_id: str, reason: str) -> None:
        """Return the leases of a node; give up episodes that were lost too often."""
        node = self._nodes.pop(node_id)
        for slot in node.slots:
            self._scheduler.closed(slot)
        for slot in node.leased.values():
            spec, again = self._scheduler.fail(slot)
            if not again:
                result = errored_result(spec)
                result.attempts = self._scheduler.attempts(spec)
                result.error = f"lost with its node {result.attempts} times: {reason}"
                self._finished.append(EpisodeDelivery(result, {}))

    def _commit_finished(self) -> None:
        """Write the episodes' files, then call the callbacks, the journal first."""
        while self._finished:
            delivery = self._finished.pop(0)
            with explaining_write_errors(self._folder):
                for place, content in delivery.files.items():
                    path = self._folder / place
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
            for callback in self._callbacks:
                callback.on_episode_end(delivery.result)

    def _keep_log(self, output: bytes) -> None:
        if output:
            with (
                explaining_write_errors(self._folder),
                (self._folder / "workers.log").open("ab") as log,
            ):
                log.write(output)

    def _send_progress(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now >= self._progress_at:
            self._progress_at = now + _POLL_S
            for callback in self._callbacks:
                callback.on_progress(self.progress())


def node_failure_reason(error: BaseException) -> str:
    """Return one line that says why a node is lost."""
    return strip_control_codes(str(error).strip().split("\n")[0], 120)


def count_text(number: int, what: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number} {what}{'s' * (number != 1)}"
