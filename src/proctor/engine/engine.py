"""The engine: the loop that joins scheduler, workers, policy and callbacks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from proctor.callbacks.base import Callback
from proctor.callbacks.staged_episodes import RecordingOptions
from proctor.callbacks.video import VideoOptions
from proctor.engine.failures import diverged_result, errored_result
from proctor.engine.inference import (
    ActionRequest,
    ActionRequestBatch,
    EpisodeAttempt,
    Inference,
    Ticket,
)
from proctor.engine.processes.in_process import make_pool
from proctor.engine.processes.startup_failures import StartupFailures
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.scheduler import Scheduler
from proctor.engine.transport.messages import (
    CloseSim,
    EpisodeEnded,
    EpisodeStarted,
    ExecuteChunk,
    NeedsActions,
    PluginFailed,
    PolicyFailed,
    RecordingFailed,
    Report,
    SimClosed,
    StartEpisode,
    WorkerFailed,
    WorkerReady,
)
from proctor.engine.transport.shared_memory import ObservationBuffer
from proctor.errors import (
    EpisodeStateLost,
    PluginError,
    PolicyError,
    RunFolderError,
    WorkerError,
    summarize_traceback,
)
from proctor.features import Array
from proctor.runs.latency import bucket_of
from proctor.runs.records import RunProgress
from proctor.types import EpisodeKey, EpisodeResult, Start

_POLL_S = 0.2
_MAX_FAILED_STARTS = 3


_FailurePoint = tuple[int, str]
"""Number of the action at which a simulator failed, and the cause."""


class Engine:
    """Runs the episodes of a scheduler. Workers and their simulators live until ``close``."""

    def __init__(
        self,
        settings: RolloutSettings,
        inference: Inference,
        scheduler: Scheduler,
        n_workers: int,
    ) -> None:
        """Prepare ``n_workers`` workers. The caller closes ``inference``, which may be reused."""
        self._inference = inference
        self._scheduler = scheduler
        self._callbacks: Sequence[Callback] = ()
        self._camera: VideoOptions | None = None
        self._recording: RecordingOptions | None = None
        self._actions: Mapping[EpisodeKey, Array] = {}
        self._not_started = list(range(n_workers))
        buffer = ObservationBuffer(n_workers, settings.features, settings.n_obs_steps)
        self._pool = make_pool(settings, buffer)
        self.wake = self._pool.wake  # callable from any thread
        self._inference.attach(self.wake)
        self._inference.warm_up(settings.features, n_workers)
        self._free: set[int] = set()
        self._finished: list[EpisodeResult] = []  # not yet passed to the callbacks
        self._requests: dict[int, ActionRequest] = {}  # latest request of each slot's episode
        self._in_flight: dict[Ticket, dict[int, ActionRequest]] = {}  # batches, by slot
        self._starting: set[int] = set()
        self._failed_starts = 0
        self._steps_at_start: dict[int, int] = {}  # step counters when the slots' episodes began
        self._earlier_failures: dict[EpisodeKey, set[_FailurePoint]] = {}  # of retried episodes
        self._starts: dict[EpisodeKey, Start] = {}  # of retried episodes
        self._startup_failures = StartupFailures()
        self._progress_at = 0.0
        self._begin_counting()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        callbacks: Sequence[Callback],
        should_stop: Callable[[], bool] = lambda: False,
        camera: VideoOptions | None = None,
        actions: Mapping[EpisodeKey, Array] | None = None,
        recording: RecordingOptions | None = None,
    ) -> None:
        """Run until all episodes have ended, or until ``should_stop`` and the begun rounds end.

        May be called again once the scheduler has more episodes. ``camera`` records a video of
        every episode, ``recording`` records its frames for a dataset. Episodes with known
        ``actions`` are replayed without the policy.
        """
        self._callbacks, self._camera, self._recording = callbacks, camera, recording
        self._actions = {} if actions is None else actions
        self._begin_counting()
        stopping = False
        try:
            while not self._scheduler.done:
                self._start_next_worker()
                for slot, report in self._pool.poll(0 if self._not_started else _POLL_S):
                    self._on_report(slot, report)
                self._send_chunks()
                self._assign_free_workers()
                self._submit_requests()
                self._report_finished()
                if not stopping and should_stop():
                    # Complete the rounds that have begun; failed episodes are still retried.
                    stopping = True
                    self._scheduler.finish_rounds()
                self._send_progress()
            self._finished += self._startup_failures.release_all()
        finally:
            self._report_finished()
            self._send_progress(force=True)

    def close(self) -> None:
        """End all workers, and the policy's state of their episodes."""
        try:
            for slot in list(self._requests):
                self._end_attempt(slot)
        finally:
            self._pool.close()

    def progress(self) -> RunProgress:
        """Return the progress of the run."""
        steps = int(self._pool.steps().sum()) - self._steps_before
        counted = self._batches, self._batched_requests, self._infer_s, dict(self._calls)
        return RunProgress(time.monotonic() - self._started_at, steps, *counted)

    def _begin_counting(self) -> None:
        """Count progress from now on."""
        self._started_at = time.monotonic()
        self._steps_before = int(self._pool.steps().sum())
        self._batches = self._batched_requests = 0
        self._infer_s = 0.0
        self._calls: Counter[int] = Counter()

    def _start_next_worker(self) -> None:
        """Start one more worker; running workers do not wait until all have started."""
        if self._not_started:
            self._start(self._not_started.pop(0))

    def _start(self, slot: int) -> None:
        self._starting.add(slot)
        self._pool.start(slot)

    def _on_report(self, slot: int, report: Report) -> None:
        match report:
            case NeedsActions(step):
                self._needs_actions(slot, step)
            case EpisodeEnded(result):
                self._episode_ended(slot, result)
            case EpisodeStarted(start):
                spec = self._scheduler.running(slot)
                assert spec is not None
                self._starts[spec.key] = start
            case WorkerReady():
                self._failed_starts = 0
                self._starting.discard(slot)
                self._free.add(slot)
            case SimClosed():
                self._scheduler.closed(slot)
                self._free.add(slot)
            case WorkerFailed():
                self._worker_failed(slot, report)
            case PolicyFailed(message, cause, code):
                error = PolicyError(message, code=code)
                raise error from (None if cause is None else WorkerError(cause))
            case PluginFailed(message, code):
                raise PluginError(message, code=code)
            case RecordingFailed(message, code):
                raise RunFolderError(message, code=code)

    def _needs_actions(self, slot: int, step: int) -> None:
        earlier = self._requests.get(slot)
        attempt = self._begin_attempt(slot) if earlier is None else earlier.attempt
        self._requests[slot] = ActionRequest(attempt, step)
        self._scheduler.request(slot)

    def _begin_attempt(self, slot: int) -> EpisodeAttempt:
        """Return the attempt whose first request has arrived: its simulator is open."""
        spec = self._scheduler.running(slot)
        assert spec is not None
        self._finished += self._startup_failures.opened(spec.task.key)
        return EpisodeAttempt(spec)

    def _episode_ended(self, slot: int, result: EpisodeResult) -> None:
        spec = self._scheduler.finish(slot)
        self._finished += self._startup_failures.opened(spec.task.key)
        self._forget_failures(spec.key)
        result.attempts = self._scheduler.attempts(spec)
        self._end_attempt(slot)
        self._free.add(slot)
        self._finished.append(result)

    def _worker_failed(self, slot: int, failure: WorkerFailed) -> None:
        """Replace the worker; its episode is retried or has ended."""
        self._free.discard(slot)
        self._end_attempt(slot)
        if self._scheduler.running(slot) is not None:
            self._episode_failed(slot, failure)
        else:
            self._scheduler.closed(slot)
            self._failed_starts += slot in self._starting  # an idle worker had started
        if failure.at_start or self._failed_starts > _MAX_FAILED_STARTS:
            raise WorkerError(
                f"workers cannot start: {summarize_traceback(failure.reason)}"
            ) from WorkerError(failure.reason)
        self._start(slot)

    def _episode_failed(self, slot: int, failure: WorkerFailed) -> None:
        """Retry the episode; the same failure twice at the same step is caused by the policy."""
        spec = self._scheduler.running(slot)
        assert spec is not None
        n_actions = int(self._pool.steps()[slot]) - self._steps_at_start[slot]
        if n_actions:
            self._finished += self._startup_failures.opened(spec.task.key)
        if failure.so_far is not None and failure.so_far.start is not None:
            self._starts[spec.key] = failure.so_far.start
        earlier = self._earlier_failures.setdefault(spec.key, set())
        diverged = n_actions > 0 and (n_actions, failure.cause) in earlier
        if failure.cause is not None:
            earlier.add((n_actions, failure.cause))
        _, again = self._scheduler.fail(slot, for_good=diverged)
        if again:
            return
        result = diverged_result(spec, n_actions, failure) if diverged else errored_result(spec)
        result.start = result.start or self._starts.get(spec.key)
        self._forget_failures(spec.key)
        result.error, result.worker = failure.reason, slot
        result.attempts = self._scheduler.attempts(spec)
        self._finished += [result] if n_actions else self._startup_failures.failed(result)

    def _forget_failures(self, key: EpisodeKey) -> None:
        """Forget the failed attempts of an episode that has ended."""
        self._earlier_failures.pop(key, None)
        self._starts.pop(key, None)

    def _end_attempt(self, slot: int) -> None:
        """Let the policy drop the state of the episode in ``slot``, if there is one."""
        request = self._requests.pop(slot, None)
        if request is not None:
            self._inference.end(request.attempt)

    def _assign_free_workers(self) -> None:
        for slot in sorted(self._free):
            spec = self._scheduler.assign(slot)
            if spec is not None:
                self._free.discard(slot)
                self._steps_at_start[slot] = int(self._pool.steps()[slot])
                actions = self._actions.get(spec.key)
                order = StartEpisode(
                    spec, self._camera, actions, self._recording, spec.key in self._earlier_failures
                )
                self._pool.send(slot, order)
            elif self._scheduler.must_close(slot):
                self._free.discard(slot)
                self._pool.send(slot, CloseSim())

    def _submit_requests(self) -> None:
        """Submit waiting requests to the policy while it accepts more batches."""
        while len(self._in_flight) < self._inference.capacity:
            slots = self._scheduler.next_batch()
            if not slots:
                return
            requests = {slot: self._requests[slot] for slot in slots}
            batch = ActionRequestBatch(list(requests.values()), self._pool.observations(slots))
            self._in_flight[self._inference.submit(batch)] = requests
            self._batches += 1
            self._batched_requests += len(slots)

    def _send_chunks(self) -> None:
        """Send finished chunks to their workers; skip workers that failed meanwhile."""
        while self._in_flight and (taken := self._inference.take()) is not None:
            ticket, reply = taken
            requests = self._in_flight.pop(ticket, None)
            if requests is None:  # of an earlier engine, which is closed
                continue
            self._infer_s += reply.seconds / self._inference.capacity
            self._calls[bucket_of(reply.seconds)] += 1
            if isinstance(reply.error, EpisodeStateLost):  # restart the episodes
                for slot, request in requests.items():
                    if self._requests.get(slot) is request:
                        self._worker_failed(slot, WorkerFailed(str(reply.error)))
                continue
            if reply.error is not None:
                raise reply.error
            assert reply.chunks is not None
            for (slot, request), actions in zip(requests.items(), reply.chunks, strict=True):
                if self._requests.get(slot) is request:
                    self._pool.send(slot, ExecuteChunk(actions))

    def _report_finished(self) -> None:
        """Pass finished episodes to the callbacks, after their workers got new episodes."""
        while self._finished:
            result = self._finished.pop(0)
            for callback in self._callbacks:
                callback.on_episode_end(result)

    def _send_progress(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now >= self._progress_at:
            self._progress_at = now + _POLL_S
            for callback in self._callbacks:
                callback.on_progress(self.progress())
