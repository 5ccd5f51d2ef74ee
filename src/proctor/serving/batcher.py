"""Batches the inference requests of all clients.

All requests that wait when the policy is free form one batch. One thread makes all calls to the
policy.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from proctor.errors import ProctorError, ProtocolError, strip_control_codes
from proctor.features import Array, Feature
from proctor.policies.base import Batch, Policy, Query
from proctor.protocols.inference_messages import InferenceRequest
from proctor.types import EpisodeSpec, Task

_LONGEST_WAIT_S = 0.005
_WAIT_SHARE = 0.1
"""A batch waits for clients that were just answered, at most this share of an inference call."""
_CLOSE_S = 1.0
_ENDLESS = 2**31

Rows = Mapping[str, Array]
"""One observation by the policy's names: [time, ...] if the client sends a history."""
Act = Callable[[Batch], Array | list[Array]]


@dataclass(frozen=True)
class BatchedReply:
    """An action chunk [T, A], with its waiting and inference time."""

    actions: Array
    wait_s: float
    act_s: float


@dataclass(eq=False)
class ClientSession:
    """One client's sequence of episodes, with one open request at a time.

    Only the policy's thread uses the fields, except ``number``.
    """

    number: int
    spec: EpisodeSpec | None = None
    step: int = 0
    state: Any = None
    past: deque[Rows] = field(default_factory=deque)


ReplyCallback = Callable[[BatchedReply | ProctorError], None]
"""Called by the policy's thread with the reply, or with the error."""


@dataclass(frozen=True)
class _PendingRequest:
    session: ClientSession
    request: InferenceRequest
    rows: Rows
    on_reply: ReplyCallback
    since: float


_Item = _PendingRequest | Callable[[], object] | None
"""A request, another task for the policy's thread, or None to stop."""


class RequestBatcher:
    """Runs the policy on batches of requests, on a thread of its own."""

    def __init__(self, policy: Policy, act: Act, *, max_batch: int, seed: int) -> None:
        self._policy, self._act = policy, act
        self.max_batch, self._seed = min(max_batch, policy.spec.max_rows or max_batch), seed
        self._numbers = itertools.count()
        self._inbox: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._sessions: set[ClientSession] = set()
        self._open = True
        self._mean_call_s = 0.0
        self.batches = self.answered = 0
        self._thread = threading.Thread(target=self._serve, name="proctor-batcher", daemon=True)
        self._thread.start()

    def open_session(self) -> ClientSession:
        """Open a session for a client."""
        session = ClientSession(next(self._numbers))
        self._sessions.add(session)
        return session

    def sessions_for(self, sessions: list[ClientSession], count: int) -> list[ClientSession]:
        """Return ``count`` of a client's sessions, opening more if needed."""
        while len(sessions) < count:
            sessions.append(self.open_session())
        return sessions[:count]

    def warm_up(self, features: Mapping[str, Feature]) -> None:
        """Warm the policy up for its batch sizes, until the first request arrives."""

        def prepare() -> None:
            for _ in self._policy.warm_up(features, self.max_batch):
                if not self._inbox.empty():
                    return

        self._inbox.put(prepare)

    def close_session(self, session: ClientSession) -> None:
        """Close a session and end its episode."""
        self._sessions.discard(session)
        self.end_episode(session)

    def end_episode(self, session: ClientSession) -> None:
        """End the session's episode; its next request starts another one."""
        self._inbox.put(partial(self._end, session))

    def observe(self, session: ClientSession, rows: Rows) -> None:
        """Add an observation without a request, for policies with several observation steps."""
        if self._policy.spec.n_obs_steps > 1:
            self._inbox.put(partial(self._remember, session, rows))

    def submit(
        self, session: ClientSession, request: InferenceRequest, rows: Rows, on_reply: ReplyCallback
    ) -> None:
        """Queue a request; ``rows`` is its observation by the policy's names."""
        if self._open:
            self._inbox.put(_PendingRequest(session, request, rows, on_reply, time.perf_counter()))
        else:
            on_reply(ProtocolError("the server is closing", code="serve.closing"))

    def close(self) -> None:
        """Refuse further requests and close the policy."""
        self._open = False
        self._inbox.put(None)
        self._thread.join(_CLOSE_S)

    def _serve(self) -> None:
        """Handle the inbox in order; consecutive requests form a batch."""
        pending: deque[_Item] = deque()
        while True:
            self._fetch(pending)
            item = pending[0]
            if item is None:
                break
            if isinstance(item, _PendingRequest):
                self._gather(pending)
                self._answer(self._batch(pending))
            else:
                pending.popleft()
                self._do(item)
        for item in pending:
            if isinstance(item, _PendingRequest):
                item.on_reply(ProtocolError("the server is closing", code="serve.closing"))
        self._do(self._policy.close)

    def _fetch(self, pending: deque[_Item]) -> None:
        """Move all items from the inbox to ``pending``; wait if there are none."""
        if not pending:
            pending.append(self._inbox.get())
        with contextlib.suppress(queue.Empty):
            while True:
                pending.append(self._inbox.get_nowait())

    def _gather(self, pending: deque[_Item]) -> None:
        """Wait briefly for clients that were just answered: they tend to send requests together."""
        until = time.perf_counter() + min(_LONGEST_WAIT_S, _WAIT_SHARE * self._mean_call_s)
        with contextlib.suppress(queue.Empty):
            while len(pending) < min(len(self._sessions), self.max_batch):
                left = until - time.perf_counter()
                if left <= 0:
                    return
                pending.append(self._inbox.get(timeout=left))

    def _batch(self, pending: deque[_Item]) -> list[_PendingRequest]:
        batch: list[_PendingRequest] = []
        while pending and len(batch) < self.max_batch:
            item = pending[0]
            if not isinstance(item, _PendingRequest):
                break
            batch.append(item)
            pending.popleft()
        return batch

    def _do(self, chore: Callable[[], object]) -> None:
        try:
            chore()
        except Exception as error:  # noqa: BLE001  printed: no request waits for it
            print(
                strip_control_codes(f"policy {self._policy.spec.name!r}: {error!r}"),
                file=sys.stderr,
            )

    def _answer(self, batch: list[_PendingRequest]) -> None:
        """Answer a batch; an invalid request fails alone."""
        began = time.perf_counter()
        queried: list[tuple[_PendingRequest, Query]] = []
        for waiting in batch:
            try:
                queried.append((waiting, self._query(waiting)))
            except Exception as error:  # noqa: BLE001  passed to the client
                waiting.on_reply(_as_proctor_error(error))
        if not queried:
            return
        try:
            chunks = self._infer(queried)
        except Exception as error:  # noqa: BLE001  as above
            if len(queried) > 1 and all(query.state is None for _, query in queried):
                for waiting, _ in queried:  # no state has changed: retry each request alone
                    self._answer([waiting])
                return
            for waiting, _ in queried:
                waiting.on_reply(_as_proctor_error(error))
            return
        self._send_replies(queried, chunks, began)

    def _infer(self, queried: list[tuple[_PendingRequest, Query]]) -> Sequence[Array] | Array:
        seen = self._observations([waiting for waiting, _ in queried])
        return self._act(Batch([query for _, query in queried], seen))

    def _send_replies(
        self,
        queried: list[tuple[_PendingRequest, Query]],
        chunks: Sequence[Array] | Array,
        began: float,
    ) -> None:
        took = time.perf_counter() - began
        self._mean_call_s = took if not self.batches else 0.9 * self._mean_call_s + 0.1 * took
        self.batches += 1
        self.answered += len(queried)
        for (waiting, query), chunk in zip(queried, chunks, strict=True):
            waiting.session.step += len(chunk)
            if np.isfinite(chunk).all():
                waiting.on_reply(BatchedReply(chunk, began - waiting.since, took))
            else:
                waiting.on_reply(
                    ProtocolError(
                        f"the policy returned NaN or infinity at step {query.step}",
                        code="policy.not-finite",
                    )
                )

    def _query(self, waiting: _PendingRequest) -> Query:
        """Return the policy's query for a request, and start an episode if needed."""
        session, request = waiting.session, waiting.request
        spec = request.episode or self._episode_of_session(session, request.prompt)
        same = session.spec is not None and session.spec.key == spec.key
        if request.episode is not None:
            same = same and session.spec == spec and request.step > 0
        if not same:
            self._end(session)
            session.state = self._new_episode_state(spec, request.step)
        session.spec = spec
        if request.episode is not None:
            session.step = request.step
        return Query(spec, session.step, session.state)

    def _new_episode_state(self, spec: EpisodeSpec, step: int) -> Any:
        """Return the policy's state for a new episode."""
        state = self._policy.new_episode(spec)
        if step > 0 and state is not None and self._policy.spec.remembers:
            self._policy.end_episode(state)
            raise ProtocolError(
                f"the policy's state of {spec} before step {step} is lost",
                code="serve.episode-state-lost",
            )
        return state

    def _episode_of_session(self, session: ClientSession, prompt: str) -> EpisodeSpec:
        """Return an episode for a client that does not name one."""
        task = Task("served", 0, prompt or "served", prompt, max_steps=_ENDLESS, fps=1)
        return EpisodeSpec(task, session.number, self._seed + session.number)

    def _observations(self, batch: list[_PendingRequest]) -> dict[str, Array]:
        rows = [self._observation(waiting) for waiting in batch]
        return {key: np.stack([row[key] for row in rows]) for key in self._policy.spec.inputs}

    def _observation(self, waiting: _PendingRequest) -> Rows:
        """Return the observation with a time axis, [n_obs_steps, ...] for each key."""
        if waiting.request.history:
            return waiting.rows
        past = self._remember(waiting.session, waiting.rows)
        return {key: _stacked([row[key] for row in past]) for key in waiting.rows}

    def _remember(self, session: ClientSession, rows: Rows) -> deque[Rows]:
        """Return the session's last observations; the first is repeated if there are too few."""
        past, length = session.past, self._policy.spec.n_obs_steps
        if not past or past[-1] is not rows:  # else the request is retried
            past.append(rows)
        while len(past) < length:
            past.appendleft(past[0])
        while len(past) > length:
            past.popleft()
        return past

    def _end(self, session: ClientSession) -> None:
        if session.spec is not None:
            state, session.state, session.spec = session.state, None, None
            session.step = 0
            session.past.clear()
            self._policy.end_episode(state)


def _as_proctor_error(error: Exception) -> ProctorError:
    return (
        error
        if isinstance(error, ProctorError)
        else ProtocolError(strip_control_codes(repr(error)), code="serve.policy-failed")
    )


def _stacked(rows: list[Array]) -> Array:
    """Stack rows as one array, without a copy of a single row."""
    return rows[0][None] if len(rows) == 1 else np.stack(rows)
