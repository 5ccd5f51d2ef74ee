"""Where all clients' questions meet the policy: whatever waits when it is free is one batch.

All calls into the policy are made by one thread, as everywhere.
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
"""A batch waits for those who were answered last, at most this part of what a call takes."""
_CLOSE_S = 1.0
_ENDLESS = 2**31

Rows = Mapping[str, Array]
"""What one question shows: [time, ...] where the client sends histories, else of one moment."""
Act = Callable[[Batch], Array | list[Array]]


@dataclass(frozen=True)
class BatchedReply:
    """A chunk [T, A], and what it took."""

    actions: Array
    wait_s: float
    act_s: float


@dataclass(eq=False)
class ClientSession:
    """Somebody who asks, one question at a time, in one episode after the other.

    All but ``number`` is touched by the policy's thread only.
    """

    number: int
    spec: EpisodeSpec | None = None
    step: int = 0
    state: Any = None
    past: deque[Rows] = field(default_factory=deque)


ReplyCallback = Callable[[BatchedReply | ProctorError], None]
"""Hears the answer, or why there is none; called by the policy's thread."""


@dataclass(frozen=True)
class _PendingRequest:
    session: ClientSession
    request: InferenceRequest
    rows: Rows
    on_reply: ReplyCallback
    since: float


_Item = _PendingRequest | Callable[[], object] | None
"""A question, something else to do, or the end."""


class RequestBatcher:
    """Answers questions in batches, on the policy's thread."""

    def __init__(self, policy: Policy, act: Act, *, max_batch: int, seed: int) -> None:
        self._policy, self._act = policy, act
        self.max_batch, self._seed = min(max_batch, policy.spec.rows_at_once or max_batch), seed
        self._numbers = itertools.count()
        self._inbox: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._sessions: set[ClientSession] = set()
        self._open = True
        self._mean_call_s = 0.0
        self.batches = self.answered = 0
        self._thread = threading.Thread(target=self._serve, name="proctor-batcher", daemon=True)
        self._thread.start()

    def open_session(self) -> ClientSession:
        """Return a new guest."""
        session = ClientSession(next(self._numbers))
        self._sessions.add(session)
        return session

    def sessions_for(self, sessions: list[ClientSession], count: int) -> list[ClientSession]:
        """Return so many of a client's guests; more come in, and are its own, if need be."""
        while len(sessions) < count:
            sessions.append(self.open_session())
        return sessions[:count]

    def warm_up(self, features: Mapping[str, Feature]) -> None:
        """Have the policy prepare for its batches, until somebody asks."""

        def prepare() -> None:
            for _ in self._policy.warm_up(features, self.max_batch):
                if not self._inbox.empty():
                    return

        self._inbox.put(prepare)

    def close_session(self, session: ClientSession) -> None:
        """Forget a guest, and the episode that it was in."""
        self._sessions.discard(session)
        self.end_episode(session)

    def end_episode(self, session: ClientSession) -> None:
        """Let what the guest asks next be another episode."""
        self._inbox.put(partial(self._end, session))

    def observe(self, session: ClientSession, rows: Rows) -> None:
        """Let the guest see something without a question: policies may look back at it."""
        if self._policy.spec.n_obs_steps > 1:
            self._inbox.put(partial(self._remember, session, rows))

    def submit(
        self, session: ClientSession, request: InferenceRequest, rows: Rows, on_reply: ReplyCallback
    ) -> None:
        """Have a question answered; ``rows``: what it is about, by our names."""
        if self._open:
            self._inbox.put(_PendingRequest(session, request, rows, on_reply, time.perf_counter()))
        else:
            on_reply(ProtocolError("the server is closing", code="serve.closing"))

    def close(self) -> None:
        """Answer nobody any more, and close the policy."""
        self._open = False
        self._inbox.put(None)
        self._thread.join(_CLOSE_S)

    def _serve(self) -> None:
        """Do what there is to do in the order it came; questions in a row are answered together."""
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
        """Take all there is, and wait where there is nothing."""
        if not pending:
            pending.append(self._inbox.get())
        with contextlib.suppress(queue.Empty):
            while True:
                pending.append(self._inbox.get_nowait())

    def _gather(self, pending: deque[_Item]) -> None:
        """Wait a moment for those who were just answered: they tend to ask again together."""
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
        except Exception as error:  # noqa: BLE001  said here: nobody waits for it
            print(
                strip_control_codes(f"policy {self._policy.spec.name!r}: {error!r}"),
                file=sys.stderr,
            )

    def _answer(self, batch: list[_PendingRequest]) -> None:
        """Answer all together; what is wrong with one question is nobody else's affair."""
        began = time.perf_counter()
        asked: list[tuple[_PendingRequest, Query]] = []
        for waiting in batch:
            try:
                asked.append((waiting, self._query(waiting)))
            except Exception as error:  # noqa: BLE001  not swallowed: whoever waits is told
                waiting.on_reply(_as_proctor_error(error))
        if not asked:
            return
        try:
            chunks = self._infer(asked)
        except Exception as error:  # noqa: BLE001  as above
            if len(asked) > 1 and all(query.state is None for _, query in asked):
                for waiting, _ in asked:  # nothing has moved on: ask again, each on its own
                    self._answer([waiting])
                return
            for waiting, _ in asked:
                waiting.on_reply(_as_proctor_error(error))
            return
        self._send_replies(asked, chunks, began)

    def _infer(self, asked: list[tuple[_PendingRequest, Query]]) -> Sequence[Array] | Array:
        seen = self._observations([waiting for waiting, _ in asked])
        return self._act(Batch([query for _, query in asked], seen))

    def _send_replies(
        self,
        asked: list[tuple[_PendingRequest, Query]],
        chunks: Sequence[Array] | Array,
        began: float,
    ) -> None:
        took = time.perf_counter() - began
        self._mean_call_s = took if not self.batches else 0.9 * self._mean_call_s + 0.1 * took
        self.batches += 1
        self.answered += len(asked)
        for (waiting, query), chunk in zip(asked, chunks, strict=True):
            waiting.session.step += len(chunk)
            if np.isfinite(chunk).all():
                waiting.on_reply(BatchedReply(chunk, began - waiting.since, took))
            else:
                waiting.on_reply(
                    ProtocolError(
                        f"the policy gives NaN or infinity at step {query.step}",
                        code="policy.not-finite",
                    )
                )

    def _query(self, waiting: _PendingRequest) -> Query:
        """Return the question as the policy is asked it, in an episode that is begun if need be."""
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
        """Return the state of an episode that begins: one in its middle has lost what it had."""
        state = self._policy.new_episode(spec)
        if step > 0 and state is not None and self._policy.spec.remembers:
            self._policy.end_episode(state)
            raise ProtocolError(
                f"what was remembered of {spec} before step {step} is gone",
                code="serve.episode-state-lost",
            )
        return state

    def _episode_of_session(self, session: ClientSession, prompt: str) -> EpisodeSpec:
        """Return an episode for somebody who does not say in which they are."""
        task = Task("served", 0, prompt or "served", prompt, max_steps=_ENDLESS, fps=1)
        return EpisodeSpec(task, session.number, self._seed + session.number)

    def _observations(self, batch: list[_PendingRequest]) -> dict[str, Array]:
        rows = [self._observation(waiting) for waiting in batch]
        return {key: np.stack([row[key] for row in rows]) for key in self._policy.spec.inputs}

    def _observation(self, waiting: _PendingRequest) -> Rows:
        """Return what the policy looks at, [n_obs_steps, ...] a key."""
        if waiting.request.history:
            return waiting.rows
        past = self._remember(waiting.session, waiting.rows)
        return {key: _stacked([row[key] for row in past]) for key in waiting.rows}

    def _remember(self, session: ClientSession, rows: Rows) -> deque[Rows]:
        """Return the last rows that the guest saw, the first repeated where there are too few."""
        past, length = session.past, self._policy.spec.n_obs_steps
        if not past or past[-1] is not rows:  # else it is asked again about the same
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
    """Return rows as one array; a single one is not copied for that."""
    return rows[0][None] if len(rows) == 1 else np.stack(rows)
