"""Runs the policy on a thread of its own, so that the engine serves workers during inference.

One thread makes every call into a policy, in the order of the requests.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from proctor.engine.chunks import blame_policy, checked_chunks
from proctor.features import ActionSpec, Array, Feature
from proctor.policies.base import Batch, Policy, Query
from proctor.types import EpisodeSpec

_CLOSE_S = 1.0
"""Seconds that a policy may take to close: Ctrl-C does not wait for a forward pass."""

Ticket = Hashable


@dataclass(eq=False)
class EpisodeAttempt:
    """One attempt at an episode. Only the policy's thread touches ``state``."""

    spec: EpisodeSpec
    state: Any = None
    begun: bool = False


class ActionRequest(NamedTuple):
    """A request for actions after ``step`` steps of an episode."""

    attempt: EpisodeAttempt
    step: int


@dataclass(frozen=True)
class ActionRequestBatch:
    """Requests that one call answers; ``observations[key]`` has shape [B, n_obs_steps, ...]."""

    requests: Sequence[ActionRequest]
    observations: dict[str, Array]


@dataclass(frozen=True)
class ActionReply:
    """A chunk [T, action size] for each request, or the error of the call."""

    chunks: Array | list[Array] | None
    error: BaseException | None
    seconds: float


class Inference(Protocol):
    """Answers batches of requests, up to ``capacity`` at a time."""

    @property
    def capacity(self) -> int:
        """Maximum number of batches in flight."""

    def attach(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever ``take`` has something to return."""

    def warm_up(self, features: Mapping[str, Feature], most: int) -> None:
        """Prepare for batches of up to ``most`` rows, until the first batch arrives."""

    def submit(self, batch: ActionRequestBatch) -> Ticket:
        """Start to answer ``batch``."""

    def take(self) -> tuple[Ticket, ActionReply] | None:
        """Return a reply that has not been returned yet, or None."""

    def end(self, attempt: EpisodeAttempt) -> None:
        """Tell the policy that an episode ended or failed, so that it drops the state."""

    def close(self) -> None:
        """Close the policy; no more batches follow."""


class _PolicyCalls:
    """All calls into one policy."""

    def __init__(self, policy: Policy, action: ActionSpec) -> None:
        self._policy = policy
        self._action = action

    def answer(self, batch: ActionRequestBatch) -> ActionReply:
        """Call the policy; the engine raises an error that is in the reply."""
        start = time.perf_counter()
        try:
            queries = [self._query(request) for request in batch.requests]
            chunks = checked_chunks(self._policy, Batch(queries, batch.observations), self._action)
        except Exception as raised:  # noqa: BLE001  not swallowed: raised again by the engine
            return ActionReply(None, raised, time.perf_counter() - start)
        return ActionReply(chunks, None, time.perf_counter() - start)

    def _query(self, request: ActionRequest) -> Query:
        attempt = request.attempt
        if not attempt.begun:
            with blame_policy(self._policy, f"at the beginning of {attempt.spec}"):
                attempt.state = self._policy.new_episode(attempt.spec)
            attempt.begun = True
        return Query(attempt.spec, request.step, attempt.state)

    def warm_up(
        self, features: Mapping[str, Feature], most: int, enough: Callable[[], bool]
    ) -> None:
        # An error here repeats with the first batch, which reports it.
        with contextlib.suppress(Exception):
            for _ in self._policy.warm_up(features, most):
                if enough():
                    return

    def end(self, attempt: EpisodeAttempt) -> None:
        if attempt.begun:
            state, attempt.state, attempt.begun = attempt.state, None, False
            with blame_policy(self._policy, f"at the end of {attempt.spec}"):
                self._policy.end_episode(state)

    def close(self) -> None:
        with blame_policy(self._policy, "while it was closed"):
            self._policy.close()


class InlineInference:
    """Answers inside ``submit``, on the engine's own thread."""

    capacity = 1

    def __init__(self, policy: Policy, action: ActionSpec) -> None:
        self._calls = _PolicyCalls(policy, action)
        self._tickets = itertools.count()
        self._answers: deque[tuple[Ticket, ActionReply]] = deque()
        self._wake: Callable[[], None] = _no_listener

    def attach(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever ``take`` has something to return."""
        self._wake = wake

    def warm_up(self, features: Mapping[str, Feature], most: int) -> None:
        """Do nothing: there is no idle time to use."""

    def submit(self, batch: ActionRequestBatch) -> Ticket:
        """Answer ``batch`` now."""
        ticket = next(self._tickets)
        self._answers.append((ticket, self._calls.answer(batch)))
        self._wake()
        return ticket

    def take(self) -> tuple[Ticket, ActionReply] | None:
        """Return a reply that has not been returned yet, or None."""
        return self._answers.popleft() if self._answers else None

    def end(self, attempt: EpisodeAttempt) -> None:
        """End the episode now."""
        self._calls.end(attempt)

    def close(self) -> None:
        """Close the policy now."""
        self._calls.close()


class ThreadInference:
    """Answers on a daemon thread, so that Ctrl-C does not wait for a forward pass."""

    capacity = 1

    def __init__(self, policy: Policy, action: ActionSpec) -> None:
        self._calls = _PolicyCalls(policy, action)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._tickets = itertools.count()
        self._answers: queue.SimpleQueue[tuple[Ticket, ActionReply]] = queue.SimpleQueue()
        self._failed: BaseException | None = None
        self._wake: Callable[[], None] = _no_listener
        self._thread = threading.Thread(target=self._serve, name="proctor-policy", daemon=True)
        self._thread.start()

    def attach(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` from the policy's thread whenever ``take`` has something to return."""
        self._wake = wake

    def warm_up(self, features: Mapping[str, Feature], most: int) -> None:
        """Warm the policy up on its thread until other work arrives."""
        enough = lambda: not self._work.empty()  # noqa: E731
        self._work.put(partial(self._calls.warm_up, features, most, enough))

    def submit(self, batch: ActionRequestBatch) -> Ticket:
        """Queue ``batch`` for the thread."""
        ticket = next(self._tickets)
        self._work.put(partial(self._answer, ticket, batch))
        return ticket

    def take(self) -> tuple[Ticket, ActionReply] | None:
        """Return a reply that has not been returned yet, or None."""
        self._raise_failure()
        try:
            return self._answers.get_nowait()
        except queue.Empty:
            return None

    def end(self, attempt: EpisodeAttempt) -> None:
        """Queue the episode's end for the thread."""
        self._work.put(partial(self._calls.end, attempt))

    def close(self) -> None:
        """Close the policy on its thread and end the thread, waiting a limited time."""
        self._work.put(self._calls.close)
        self._work.put(None)
        self._thread.join(_CLOSE_S)
        self._raise_failure()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  not swallowed: raised by take or close
                self._failed = self._failed or error
                self._wake()

    def _answer(self, ticket: Ticket, batch: ActionRequestBatch) -> None:
        self._answers.put((ticket, self._calls.answer(batch)))
        self._wake()

    def _raise_failure(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed


def infer_and_wait(inference: Inference, batch: ActionRequestBatch) -> ActionReply:
    """Submit a batch and wait for its reply, for loops without other work."""
    answered = threading.Event()
    inference.attach(answered.set)
    ticket = inference.submit(batch)
    while True:
        taken = inference.take()
        if taken is None:
            answered.wait()
            answered.clear()
        elif taken[0] == ticket:
            return taken[1]


def _no_listener() -> None:
    """Stand in for ``wake`` until ``attach`` is called."""
