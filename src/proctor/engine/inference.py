"""Runs the policy: on a thread of its own, so that workers are served while it thinks."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from proctor.engine.chunks import checked_chunks
from proctor.features import ActionSpec, Array
from proctor.policies.base import Batch, Policy


@dataclass(frozen=True)
class Answer:
    """A chunk [T, action size] for each query, or the error that came instead."""

    chunks: Array | list[Array] | None
    error: BaseException | None
    seconds: float


class Inference(Protocol):
    """Answers one batch at a time."""

    def submit(self, batch: Batch) -> None:
        """Start to answer ``batch``; nothing else may be under way."""

    def take(self) -> Answer | None:
        """Return the answer once it is there."""

    def close(self) -> None:
        """No more batches will come."""


class InlineInference:
    """Answers while ``submit`` is called."""

    def __init__(self, policy: Policy, action: ActionSpec) -> None:
        self._policy = policy
        self._action = action
        self._answer: Answer | None = None

    def submit(self, batch: Batch) -> None:
        """Answer ``batch`` now."""
        self._answer = _answer(self._policy, batch, self._action)

    def take(self) -> Answer | None:
        """Return the answer to the last batch, once."""
        answer, self._answer = self._answer, None
        return answer

    def close(self) -> None:
        """There is nothing to end."""


class ThreadInference:
    """Answers on a daemon thread and calls ``wake`` when done.

    A daemon, so that Ctrl-C does not wait for a forward pass.
    """

    def __init__(self, policy: Policy, action: ActionSpec, wake: Callable[[], None]) -> None:
        self._batches: queue.SimpleQueue[Batch | Iterator[None] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._serve, args=(policy, action, wake), name="proctor-policy", daemon=True
        )
        self._thread.start()

    def warm_up(self, pieces: Iterator[None]) -> None:
        """Have the thread go through ``pieces`` until the first batch comes."""
        self._batches.put(pieces)

    def submit(self, batch: Batch) -> None:
        """Hand ``batch`` to the thread."""
        self._batches.put(batch)

    def take(self) -> Answer | None:
        """Return the answer if it is there."""
        try:
            return self._answers.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Tell the thread to end after the batch it works on."""
        self._batches.put(None)

    def _serve(self, policy: Policy, action: ActionSpec, wake: Callable[[], None]) -> None:
        while (work := self._batches.get()) is not None:
            if isinstance(work, Batch):
                self._answers.put(_answer(policy, work, action))
                wake()
            else:
                self._warm_up(work)

    def _warm_up(self, pieces: Iterator[None]) -> None:
        # What goes wrong here goes wrong again with the first batch, and is heard of there.
        with contextlib.suppress(Exception):
            for _ in pieces:
                if not self._batches.empty():
                    return


def _answer(policy: Policy, batch: Batch, action: ActionSpec) -> Answer:
    """Ask the policy; its error travels to the engine, which raises it there."""
    start = time.perf_counter()
    try:
        chunks, error = checked_chunks(policy, batch, action), None
    except Exception as raised:  # noqa: BLE001  not swallowed: raised again by the engine
        chunks, error = None, raised
    return Answer(chunks, error, time.perf_counter() - start)
