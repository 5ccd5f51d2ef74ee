"""The head of engines elsewhere: leases episodes to them and commits what comes back, each once.

It decides nothing about an episode: what broke and is tried again there, what has diverged, what
the policy does, all of that is their engine's. What it leases is known by the scheduler's slots;
an engine that is gone gives its leases back, and somebody else plays the same bits.
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
from proctor.engine.cluster_messages import (
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
_LOOK_S = 2.0
"""Between two looks for nodes."""
_PATIENCE_S = 60.0
"""How long to wait for a node when there is none any more."""
_MOST_FUTILE = 3
"""How often an engine may be lost in one seat before its first episode ends."""
_MOST_AHEAD = 64
"""Episodes that may wait in a node for each of its simulators: of the quickest, all that it plays
until it tells again."""
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

Say = Callable[[str], None]


@dataclass
class _NodeState:
    name: str
    number: int
    """Of all that ever were."""
    first_worker: int = 0
    """Where its simulators begin among all of the run."""
    lines: list[int] = field(default_factory=list)
    """A slot of the scheduler for each simulator: their tasks are those that are played there."""
    leased: dict[EpisodeKey, int] = field(default_factory=dict)
    """Slots, also of episodes that wait behind those of the lines."""
    most_told: int = 0
    """How many episodes it told of at a time, at most."""
    delivered: bool = False
    asked: bool = False


class ClusterEngine:
    """Plays the episodes a scheduler holds, as an engine does, by all engines of a cluster."""

    def __init__(self, cluster: Cluster, folder: Path, say: Say = lambda line: None) -> None:
        """Put the files that episodes leave into ``folder``, and ``say`` who comes and goes."""
        self._cluster, self._folder, self._say = cluster, folder, say
        self._scheduler: Scheduler
        self._environment: Mapping[str, str] = {}
        self._callbacks: Sequence[Callback] = ()
        self._way = RolloutOptions({})
        self._actions: Mapping[EpisodeKey, Array] = {}
        self._seats: dict[str, _NodeState] = {}
        self._futile: Counter[str] = Counter()
        self._unfit: dict[str, str] = {}  # seats that are of no use, and why
        self._slots, self._numbers = itertools.count(), itertools.count()
        self._workers = 0  # of all seats that ever were
        self._most_open = 1  # seats at a time
        self._finished: list[EpisodeDelivery] = []  # not yet committed
        self._efforts: dict[int, NodeEffort] = {}  # by number of seat
        self._looked_at = float("-inf")
        self._alone_since: float | None = None
        self._pulse_at = 0.0
        self._begin_counting()

    def has(self, scheduler: Scheduler, environment: Mapping[str, str]) -> None:
        """Play what ``scheduler`` holds from now on, by workers with these variables."""
        self._scheduler, self._environment = scheduler, environment

    def run(
        self,
        callbacks: Sequence[Callback],
        should_stop: Callable[[], bool] = lambda: False,
        camera: VideoOptions | None = None,
        actions: Mapping[EpisodeKey, Array] | None = None,
        recording: RecordingOptions | None = None,
    ) -> None:
        """Run until every episode has ended, or ``should_stop`` and the rounds begun have.

        Raises:
            PolicyError: the policy returned no usable actions.
            WorkerError: no node is left, or none can play these episodes.
            RunFolderError: what an episode left cannot be written.
        """
        self._callbacks, self._actions = callbacks, actions or {}
        self._way = RolloutOptions(dict(self._environment), camera, recording)
        self._begin_counting()
        stopping = False
        try:
            while not self._scheduler.done:
                self._seat_newcomers()
                self._lease()
                for node_id, told in self._cluster.poll(_POLL_S):
                    self._hear(node_id, told)
                self._lease()  # before what takes time: engines do not wait for the disk
                self._commit_finished()
                if not stopping and should_stop():
                    stopping = True
                    self._scheduler.finish_rounds()
                self._send_progress()
        finally:
            self._commit_finished()
            self._send_progress(force=True)

    def close(self) -> None:
        """End all engines."""
        self._seats.clear()
        self._cluster.close()

    def progress(self) -> RunProgress:
        """Return how the run goes, on all nodes together."""
        done = sum(self._efforts.values(), NodeEffort())
        return done.since(self._before, time.monotonic() - self._started_at, self._most_open)

    def _begin_counting(self) -> None:
        self._started_at = time.monotonic()
        self._before = sum(self._efforts.values(), NodeEffort())

    def _seat_newcomers(self) -> None:
        """Look for nodes now and then; one that comes late, or again, is as good as any."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        for newcomer in self._cluster.newcomers(besides={*self._seats, *self._unfit}):
            self._seats[newcomer.node_id] = _NodeState(newcomer.name, next(self._numbers))
        if self._seats:
            self._alone_since = None
            return
        self._alone_since = self._alone_since or now
        if self._unfit:
            raise WorkerError(f"no node can play this: {next(iter(self._unfit.values()))}")
        if now - self._alone_since > _PATIENCE_S:
            raise WorkerError(
                f"no node has been there for {_PATIENCE_S:g} s; what has ended is kept: start the "
                "cluster, then run again with --resume"
            )

    def _lease(self) -> None:
        """Give every engine that may be given something its lot, and ask all others for news."""
        for name, node_id in self._seats.items():
            if not node_id.asked:
                node_id.asked = True
                episode_batch = self._lot_for(node_id)
                self._cluster.give(name, episode_batch)

    def _lot_for(self, node_id: _NodeState) -> EpisodeBatch | None:
        """Lease what keeps its simulators busy until it tells again; towards the end, its share."""
        specs = (*self._for_lines(node_id), *self._ahead_for(node_id))
        if not specs:
            return None
        again = {s.key: self._actions[s.key] for s in specs if s.key in self._actions}
        return EpisodeBatch(specs, self._way, again)

    def _for_lines(self, node_id: _NodeState) -> Iterator[EpisodeSpec]:
        """Lease one episode to each simulator that has none, of its task while there are any."""
        for line in node_id.lines:
            idle = self._scheduler.running(line) is None
            if idle and (spec := self._leased(node_id, line)) is not None:
                yield spec

    def _ahead_for(self, node_id: _NodeState) -> Iterator[EpisodeSpec]:
        """Lease episodes to wait behind those of its lines, of their tasks, in equal measure.

        One of another task would make it open a simulator.
        """
        scheduler, simulators = self._scheduler, len(node_id.lines)
        ahead = min(max(simulators, 2 * node_id.most_told), _MOST_AHEAD * simulators)
        share = scheduler.queued // (2 * len(self._seats))  # lots shrink towards the end
        lines = Counter(
            task for line in node_id.lines if (task := scheduler.held(line)) is not None
        )
        has = Counter((suite, task) for suite, task, _ in node_id.leased)
        for _ in range(simulators + min(ahead, share) - len(node_id.leased)):
            tasks = [task for task in lines if scheduler.left_of(task)]
            scarce = min(tasks, key=lambda task: has[task] / lines[task], default=None)
            if scarce is None:
                return
            spec = self._leased(node_id, next(self._slots), scarce)
            if spec is None:
                return
            has[spec.task.key] += 1
            yield spec

    def _leased(
        self, node_id: _NodeState, slot: int, of: TaskKey | None = None
    ) -> EpisodeSpec | None:
        spec = self._scheduler.assign(slot, of)
        if spec is not None:
            node_id.leased[spec.key] = slot
        return spec

    def _hear(self, name: str, told: NodeReport | NodeLost) -> None:
        node_id = self._seats[name]
        node_id.asked = False
        if isinstance(told, NodeLost):
            self._lost(name, told.reason)
            return
        if told.simulators and not node_id.lines:
            node_id.lines = [next(self._slots) for _ in range(told.simulators)]
            node_id.first_worker = self._workers
            self._workers += told.simulators
            self._most_open = max(self._most_open, sum(bool(s.lines) for s in self._seats.values()))
            self._say(f"{node_id.name}: {count_text(told.simulators, 'simulator')}")
        self._efforts[node_id.number] = told.effort
        self._keep_log(told.log)
        self._take(node_id, told.ended)
        if node_id.delivered:
            del self._futile[name]
        if told.failure is not None:
            self._failed(name, told.failure)

    def _take(self, node_id: _NodeState, ended: Sequence[EpisodeDelivery]) -> None:
        """Take results of what is leased to ``node_id``; anything else was taken before."""
        for delivery in ended:
            slot = node_id.leased.pop(delivery.result.spec.key, None)
            if slot is None:
                continue
            spec = self._scheduler.finish(slot)
            delivery.result.attempts += self._scheduler.attempts(spec) - 1
            delivery.result.worker += node_id.first_worker
            if slot not in node_id.lines:
                self._scheduler.closed(slot)
            self._finished.append(delivery)
            node_id.delivered = True
        node_id.most_told = max(node_id.most_told, len(ended))

    def _failed(self, name: str, failure: NodeFailure) -> None:
        """Do without an engine that cannot play; one that could and fails ends the run."""
        node_id = self._seats[name]
        said = f"{node_id.name}: {failure.message}"
        if not failure.unfit:
            kind = _RAISED.get(failure.kind, WorkerError)
            raise kind(said) from WorkerError(failure.cause)
        self._say(f"left out {said}")
        self._unfit[name] = said
        self._give_back(name, failure.message)

    def _lost(self, name: str, reason: str) -> None:
        node_id = self._seats[name]
        self._futile[name] += not node_id.delivered
        back = count_text(len(node_id.leased), "episode")
        self._say(f"lost {node_id.name} ({reason}); leased to others: {back}")
        if self._futile[name] >= _MOST_FUTILE:
            self._unfit[name] = f"{node_id.name}: lost {_MOST_FUTILE} times: {reason}"
        self._give_back(name, reason)
        self._looked_at = float("-inf")  # somebody may take its place at once

    def _give_back(self, name: str, reason: str) -> None:
        """Let others have what was leased to a seat; what was lost too often is given up."""
        node_id = self._seats.pop(name)
        for line in node_id.lines:
            self._scheduler.closed(line)
        for slot in node_id.leased.values():
            spec, again = self._scheduler.fail(slot)
            if not again:
                result = errored_result(spec)
                result.attempts = self._scheduler.attempts(spec)
                result.error = f"lost with its node {result.attempts} times: {reason}"
                self._finished.append(EpisodeDelivery(result, {}))

    def _commit_finished(self) -> None:
        """Write what episodes left, then tell the recorders, the journal first."""
        while self._finished:
            delivery = self._finished.pop(0)
            with explaining_write_errors(self._folder):
                for place, content in delivery.files.items():
                    path = self._folder / place
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
            for callback in self._callbacks:
                callback.on_episode_end(delivery.result)

    def _keep_log(self, said: bytes) -> None:
        if said:
            with (
                explaining_write_errors(self._folder),
                (self._folder / "workers.log").open("ab") as log,
            ):
                log.write(said)

    def _send_progress(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now >= self._pulse_at:
            self._pulse_at = now + _POLL_S
            for callback in self._callbacks:
                callback.on_progress(self.progress())


def node_failure_reason(error: BaseException) -> str:
    """Return in one line why an engine is gone."""
    return strip_control_codes(str(error).strip().split("\n")[0], 120)


def count_text(number: int, what: str) -> str:
    """Return how many of what there are, in words."""
    return f"{number} {what}{'s' * (number != 1)}"
