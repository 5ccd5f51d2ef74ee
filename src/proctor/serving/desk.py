"""Where all clients' questions meet the policy: whatever waits when it is free is one batch.

All calls into the policy are made by one thread, as everywhere.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from proctor.errors import ProctorError, WireError, one_line
from proctor.features import Array, Feature
from proctor.policies.base import Batch, Policy, Query
from proctor.types import EpisodeSpec, Task
from proctor.wire.records import Ask

_LONGEST_WAIT_S = 0.005
_WAIT_SHARE = 0.1
"""A batch waits for those who were answered last, at most this part of what a call takes."""
_CLOSE_S = 1.0
_ENDLESS = 2**31

Rows = Mapping[str, Array]
"""What one question shows: [time, ...] where the client sends histories, else of one moment."""
Act = Callable[[Batch], Array | list[Array]]


@dataclass(frozen=True)
class Answered:
    """A chunk [T, A], and what it took."""

    actions: Array
    wait_s: float
    act_s: float


@dataclass(eq=False)
class Guest:
    """Somebody who asks, one question at a time, in one episode after the other.

    All but ``number`` is touched by the policy's thread only.
    """

    number: int
    spec: EpisodeSpec | None = None
    step: int = 0
    state: Any = None
    past: deque[Rows] = field(default_factory=deque)


@dataclass(frozen=True)
class _Waiting:
    guest: Guest
    ask: Ask
    rows: Rows
    answer: Future[Answered]
    since: float


class Desk:
    """Answers questions in batches, on the policy's thread."""

    def __init__(self, policy: Policy, act: Act, *, most: int, seed: int) -> None:
        self._policy, self._act = policy, act
        self.most, self._seed = most, seed
        self._numbers = itertools.count()
        self._waiting: deque[_Waiting] = deque()
        self._chores: deque[Callable[[], object]] = deque()
        self._guests: set[Guest] = set()
        self._changed = threading.Condition()
        self._open = True
        self._usual_s = 0.0
        self.batches = self.answered = 0
        self._thread = threading.Thread(target=self._serve, name="proctor-desk", daemon=True)
        self._thread.start()

    def enter(self) -> Guest:
        """Return a new guest."""
        with self._changed:
            guest = Guest(next(self._numbers))
            self._guests.add(guest)
            return guest

    def warm_up(self, features: Mapping[str, Feature]) -> None:
        """Have the policy prepare for its batches, until somebody asks."""

        def prepare() -> None:
            for _ in self._policy.warm_up(features, self.most):
                if self._waiting or not self._open:
                    return

        self._do(prepare)

    def leave(self, guest: Guest) -> None:
        """Forget a guest, and the episode that it was in."""
        with self._changed:
            self._guests.discard(guest)
        self.end_episode(guest)

    def end_episode(self, guest: Guest) -> None:
        """Let what the guest asks next be another episode."""
        self._do(lambda: self._end(guest))

    def see(self, guest: Guest, rows: Rows) -> None:
        """Let the guest see something without a question: policies may look back at it."""
        if self._policy.spec.n_obs_steps > 1:
            self._do(partial(self._remember, guest, rows))

    def ask(self, guest: Guest, ask: Ask, rows: Rows) -> Future[Answered]:
        """Return what will hold the answer; ``rows``: what is asked about, by our names."""
        answer: Future[Answered] = Future()
        with self._changed:
            if not self._open:
                answer.set_exception(WireError("the server is closing"))
                return answer
            self._waiting.append(_Waiting(guest, ask, rows, answer, time.perf_counter()))
            self._changed.notify()
        return answer

    def _do(self, chore: Callable[[], object]) -> None:
        with self._changed:
            self._chores.append(chore)
            self._changed.notify()

    def close(self) -> None:
        """Answer nobody any more, and close the policy."""
        with self._changed:
            self._open = False
            left, self._waiting = self._waiting, deque()
            self._changed.notify()
        for waiting in left:
            waiting.answer.set_exception(WireError("the server is closing"))
        self._thread.join(_CLOSE_S)

    def _serve(self) -> None:
        while (batch := self._next()) is not None:
            if batch:
                self._answer(batch)
        with contextlib.suppress(Exception):  # nobody is left to hear of it
            self._policy.close()

    def _next(self) -> list[_Waiting] | None:
        """Wait for something to do: a batch, chores (an empty one), or the end (None)."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._chores or not self._open)
            if not self._open:
                return None
            chores, self._chores = list(self._chores), deque()
            if not chores:
                self._gather()
            size = 0 if chores else min(len(self._waiting), self.most)
            batch = [self._waiting.popleft() for _ in range(size)]
        for chore in chores:
            try:
                chore()
            except Exception as error:  # noqa: BLE001  said here: nobody waits for it
                print(one_line(f"policy {self._policy.spec.name!r}: {error!r}"), file=sys.stderr)
        return batch

    def _gather(self) -> None:
        """Wait a moment for those who were just answered: they tend to ask again together."""
        until = time.perf_counter() + min(_LONGEST_WAIT_S, _WAIT_SHARE * self._usual_s)
        while len(self._waiting) < min(len(self._guests), self.most) and self._open:
            left = until - time.perf_counter()
            if left <= 0 or not self._changed.wait(left):
                return

    def _answer(self, batch: list[_Waiting]) -> None:
        began = time.perf_counter()
        try:
            queries = [self._query(waiting) for waiting in batch]
            chunks = self._act(Batch(queries, self._observations(batch)))
        except Exception as error:  # noqa: BLE001  not swallowed: everyone who waits is told
            said = error if isinstance(error, ProctorError) else WireError(one_line(repr(error)))
            for waiting in batch:
                waiting.answer.set_exception(said)
            return
        took = time.perf_counter() - began
        self._usual_s = took if not self.batches else 0.9 * self._usual_s + 0.1 * took
        self.batches += 1
        self.answered += len(batch)
        for waiting, chunk in zip(batch, chunks, strict=True):
            waiting.guest.step += len(chunk)
            answered = Answered(np.asarray(chunk, np.float32), began - waiting.since, took)
            waiting.answer.set_result(answered)

    def _query(self, waiting: _Waiting) -> Query:
        """Return the question as the policy is asked it, in an episode that is begun if need be."""
        guest, ask = waiting.guest, waiting.ask
        spec = ask.episode or self._made_up(guest, ask.prompt)
        same = guest.spec is not None and guest.spec.key == spec.key
        if ask.episode is not None:
            same = same and guest.spec == spec and ask.step > 0
        if not same:
            self._end(guest)
            guest.state = self._policy.new_episode(spec)
        guest.spec = spec
        if ask.episode is not None:
            guest.step = ask.step
        return Query(spec, guest.step, guest.state)

    def _made_up(self, guest: Guest, prompt: str) -> EpisodeSpec:
        """Return an episode for somebody who does not say in which they are."""
        task = Task("served", 0, prompt or "served", prompt, max_steps=_ENDLESS, fps=1)
        return EpisodeSpec(task, guest.number, self._seed + guest.number)

    def _observations(self, batch: list[_Waiting]) -> dict[str, Array]:
        rows = [self._seen(waiting) for waiting in batch]
        return {key: np.stack([row[key] for row in rows]) for key in self._policy.spec.inputs}

    def _seen(self, waiting: _Waiting) -> Rows:
        """Return what the policy looks at, [n_obs_steps, ...] a key."""
        if waiting.ask.history:
            return waiting.rows
        past = self._remember(waiting.guest, waiting.rows)
        return {key: _stacked([row[key] for row in past]) for key in waiting.rows}

    def _remember(self, guest: Guest, rows: Rows) -> deque[Rows]:
        """Return the last rows that the guest saw, the first repeated where there are too few."""
        past, length = guest.past, self._policy.spec.n_obs_steps
        past.append(rows)
        while len(past) < length:
            past.appendleft(past[0])
        while len(past) > length:
            past.popleft()
        return past

    def _end(self, guest: Guest) -> None:
        if guest.spec is not None:
            state, guest.state, guest.spec = guest.state, None, None
            guest.step = 0
            guest.past.clear()
            self._policy.end_episode(state)


def _stacked(rows: list[Array]) -> Array:
    """Return rows as one array; a single one is not copied for that."""
    return rows[0][None] if len(rows) == 1 else np.stack(rows)
