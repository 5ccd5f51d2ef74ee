"""The loop that joins scheduler, workers, policy and recorders."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from proctor.callbacks.base import Callback
from proctor.callbacks.staged_episodes import RecordingOptions
from proctor.callbacks.video import VideoOptions
from proctor.engine.failures import diverged_result, errored_result
from proctor.engine.in_process import make_pool
from proctor.engine.inference import (
    ActionRequest,
    ActionRequestBatch,
    EpisodeAttempt,
    Inference,
    Ticket,
)
from proctor.engine.messages import (
    CloseSim,
    EpisodeEnded,
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
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.scheduler import Scheduler
from proctor.engine.shared_memory import ObservationBuffer
from proctor.engine.startup_failures import StartupFailures
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
from proctor.types import EpisodeKey, EpisodeResult

_POLL_S = 0.2
_MAX_FAILED_STARTS = 3


_Breakage = tuple[int, str]
"""At which action a simulator broke, and how."""


class Engine:
    """Runs the episodes a scheduler holds. Workers and their simulators stay until it is closed."""

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
        self.wake = self._pool.wake  # for any thread: there may be more to run
        self._inference.attach(self.wake)
        self._inference.warm_up(settings.features, n_workers)
        self._free: set[int] = set()
        self._finished: list[EpisodeResult] = []  # not yet recorded
        self._turns: dict[
            int, ActionRequest
        ] = {}  # what the episode in each slot asks or asked last
        self._asked: dict[
            Ticket, dict[int, ActionRequest]
        ] = {}  # the batches in flight, slot by slot
        self._starting: set[int] = set()
        self._starts_failed = 0
        self._beats_before: dict[int, int] = {}  # of the slots' episodes
        self._broke: dict[EpisodeKey, set[_Breakage]] = {}  # how episodes that go on broke before
        self._startup_failures = StartupFailures()
        self._pulse_at = 0.0
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
        """Run until every episode has ended, or ``should_stop`` and the rounds begun have.

        It may be called again once the scheduler has more. ``camera`` films every episode,
        ``recording`` makes a take of it. Those whose ``actions`` are known are played again by
        them, without the policy.

        Raises:
            PolicyError: the policy returned no usable actions.
            PluginError: what should be a simulator is none.
            WorkerError: no worker can be started, or no simulator of a task can be opened.
            RunFolderError: a take cannot be written.
        """
        self._callbacks, self._camera, self._recording = callbacks, camera, recording
        self._actions = {} if actions is None else actions
        self._begin_counting()
        stopping = False
        try:
            while not self._scheduler.done:
                self._start_next_worker()
                for slot, report in self._pool.poll(0 if self._not_started else _POLL_S):
                    self._hear(slot, report)
                self._dispatch_answer()
                self._assign_free_workers()
                self._ask_policy()
                self._record_finished()
                if not stopping and should_stop():
                    # Only complete what has begun; what breaks is still tried again.
                    stopping = True
                    self._scheduler.finish_rounds()
                self._send_progress()
            self._finished += self._startup_failures.rest()
        finally:
            self._record_finished()
            self._send_progress(force=True)

    def close(self) -> None:
        """End all workers, and for the policy the episodes that they are in."""
        try:
            for slot in list(self._turns):
                self._end_attempt(slot)
        finally:
            self._pool.close()

    def progress(self) -> RunProgress:
        """Return how the run goes."""
        steps = int(self._pool.steps().sum()) - self._steps_before
        counted = self._batches, self._batched_requests, self._infer_s, dict(self._calls)
        return RunProgress(time.monotonic() - self._started_at, steps, *counted)

    def _begin_counting(self) -> None:
        """Let pulses tell of what happens from now on."""
        self._started_at = time.monotonic()
        self._steps_before = int(self._pool.steps().sum())
        self._batches = self._batched_requests = 0
        self._infer_s = 0.0
        self._calls: Counter[int] = Counter()

    def _start_next_worker(self) -> None:
        """Start one of those to come; those that run need not wait until all have been."""
        if self._not_started:
            self._start(self._not_started.pop(0))

    def _start(self, slot: int) -> None:
        self._starting.add(slot)
        self._pool.start(slot)

    def _hear(self, slot: int, report: Report) -> None:
        match report:
            case NeedsActions(step):
                self._needs_actions(slot, step)
            case EpisodeEnded(result):
                self._ended(slot, result)
            case WorkerReady():
                self._starts_failed = 0
                self._starting.discard(slot)
                self._free.add(slot)
            case SimClosed():
                self._scheduler.closed(slot)
                self._free.add(slot)
            case WorkerFailed():
                self._broken(slot, report)
            case PolicyFailed(message, cause):
                raise PolicyError(message) from (None if cause is None else WorkerError(cause))
            case PluginFailed(message):
                raise PluginError(message)
            case RecordingFailed(message):
                raise RunFolderError(message)

    def _needs_actions(self, slot: int, step: int) -> None:
        spec = self._scheduler.running(slot)
        assert spec is not None
        self._finished += self._startup_failures.opened(spec.task.key)
        earlier = self._turns.get(slot)
        self._turns[slot] = ActionRequest(
            earlier.attempt if earlier else EpisodeAttempt(spec), step
        )
        self._scheduler.request(slot)

    def _ended(self, slot: int, result: EpisodeResult) -> None:
        spec = self._scheduler.finish(slot)
        self._finished += self._startup_failures.opened(spec.task.key)
        self._broke.pop(spec.key, None)
        result.attempts = self._scheduler.attempts(spec)
        self._end_attempt(slot)
        self._free.add(slot)
        self._finished.append(result)

    def _broken(self, slot: int, broken: WorkerFailed) -> None:
        """Replace the worker; its episode is tried again, or has ended."""
        self._free.discard(slot)
        self._end_attempt(slot)
        if self._scheduler.running(slot) is not None:
            self._broken_in_episode(slot, broken)
        else:
            self._scheduler.closed(slot)
            self._starts_failed += slot in self._starting  # one that was idle had started
        if broken.at_start or self._starts_failed > _MAX_FAILED_STARTS:
            raise WorkerError(
                f"workers cannot start: {summarize_traceback(broken.reason)}"
            ) from WorkerError(broken.reason)
        self._start(slot)

    def _broken_in_episode(self, slot: int, broken: WorkerFailed) -> None:
        """Try the episode again; one that breaks twice in the same way is the policy's doing."""
        spec = self._scheduler.running(slot)
        assert spec is not None
        given = int(self._pool.steps()[slot]) - self._beats_before[slot]
        if given:
            self._finished += self._startup_failures.opened(spec.task.key)
        earlier = self._broke.setdefault(spec.key, set())
        diverged = given > 0 and (given, broken.cause) in earlier
        if broken.cause is not None:
            earlier.add((given, broken.cause))
        _, again = self._scheduler.fail(slot, for_good=diverged)
        if again:
            return
        del self._broke[spec.key]
        result = diverged_result(spec, given, broken) if diverged else errored_result(spec)
        result.error, result.worker = broken.reason, slot
        result.attempts = self._scheduler.attempts(spec)
        self._finished += [result] if given else self._startup_failures.failed(result)

    def _end_attempt(self, slot: int) -> None:
        """Let the policy forget the episode in ``slot``, if it was asked for it."""
        request = self._turns.pop(slot, None)
        if request is not None:
            self._inference.end(request.attempt)

    def _assign_free_workers(self) -> None:
        for slot in sorted(self._free):
            spec = self._scheduler.assign(slot)
            if spec is not None:
                self._free.discard(slot)
                self._beats_before[slot] = int(self._pool.steps()[slot])
                actions = self._actions.get(spec.key)
                self._pool.send(slot, StartEpisode(spec, self._camera, actions, self._recording))
            elif self._scheduler.must_close(slot):
                self._free.discard(slot)
                self._pool.send(slot, CloseSim())

    def _ask_policy(self) -> None:
        """Send whatever requests there are to the policy, as long as it takes more."""
        while len(self._asked) < self._inference.capacity:
            slots = self._scheduler.next_batch()
            if not slots:
                return
            asked = {slot: self._turns[slot] for slot in slots}
            batch = ActionRequestBatch(list(asked.values()), self._pool.observations(slots))
            self._asked[self._inference.submit(batch)] = asked
            self._batches += 1
            self._batched_requests += len(slots)

    def _dispatch_answer(self) -> None:
        """Send finished chunks to their workers; one that broke meanwhile has no use for its."""
        while self._asked and (taken := self._inference.take()) is not None:
            ticket, answer = taken
            asked = self._asked.pop(ticket, None)
            if asked is None:  # of an engine before this one, which is closed
                continue
            self._infer_s += answer.seconds / self._inference.capacity
            self._calls[bucket_of(answer.seconds)] += 1
            still = [slot for slot, request in asked.items() if self._turns.get(slot) is request]
            if isinstance(
                answer.error, EpisodeStateLost
            ):  # as if its simulator had: from the beginning
                for slot in still:
                    self._broken(slot, WorkerFailed(str(answer.error)))
                continue
            if answer.error is not None:
                raise answer.error
            assert answer.chunks is not None
            for slot, actions in zip(asked, answer.chunks, strict=True):
                if slot in still:
                    self._pool.send(slot, ExecuteChunk(actions))

    def _record_finished(self) -> None:
        """Hand finished episodes to the recorders, after their workers have been given new ones."""
        while self._finished:
            result = self._finished.pop(0)
            for callback in self._callbacks:
                callback.on_episode_end(result)

    def _send_progress(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now >= self._pulse_at:
            self._pulse_at = now + _POLL_S
            for callback in self._callbacks:
                callback.on_progress(self.progress())
