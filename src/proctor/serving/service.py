"""What every protocol is served from: the desk, the policy's inputs, and what is said of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from proctor.errors import ProctorError
from proctor.protocols.inference_messages import InferenceRequest, ServerInfo
from proctor.serving.batcher import BatchedReply, ClientSession, RequestBatcher
from proctor.serving.inputs import Inputs
from proctor.system.warn_once import WarnOnce


@dataclass(frozen=True)
class PolicyService:
    """A policy, as those who serve it need it."""

    batcher: RequestBatcher
    inputs: Inputs
    server_info: ServerInfo
    once: WarnOnce = field(default_factory=WarnOnce)
    """Says what clients' names stand for."""

    @contextlib.contextmanager
    def session(self) -> Iterator[ClientSession]:
        """Enter as a guest, and leave."""
        session = self.batcher.open_session()
        try:
            yield session
        finally:
            self.batcher.close_session(session)

    async def answer(
        self, session: ClientSession, request: InferenceRequest, aliases: Mapping[str, str]
    ) -> BatchedReply:
        """Return the answer to a question.

        Raises:
            ProctorError: it cannot be answered, in one line for whoever asked.
        """
        rows = self.inputs.rows(request, aliases)
        self._print_aliases(request, aliases)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[BatchedReply] = loop.create_future()

        def on_reply(said: BatchedReply | ProctorError) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, answer, said)

        self.batcher.submit(session, request, rows, on_reply)
        return await answer

    def _print_aliases(self, request: InferenceRequest, aliases: Mapping[str, str]) -> None:
        """Print which of a stranger's names stand for what: only its user knows if that is so."""
        if request.episode is not None:
            return
        known = request.observation
        taken = ", ".join(f"{name} is {key}" for key, name in aliases.items() if key not in known)
        if taken:
            self.once.warn(f"a client's {taken}")

    def observe(
        self, session: ClientSession, request: InferenceRequest, aliases: Mapping[str, str]
    ) -> None:
        """Take note of what is seen, without an answer.

        Raises:
            WireError: it is not what the policy looks at.
        """
        self.batcher.observe(session, self.inputs.rows(request, aliases))

    def health(self) -> dict[str, Any]:
        """Return how it goes."""
        batcher = self.batcher
        mean = batcher.answered / batcher.batches if batcher.batches else None
        return {
            "status": "ok",
            "answered": batcher.answered,
            "batches": batcher.batches,
            "batch": mean,
        }


def _settle(answer: asyncio.Future[BatchedReply], said: BatchedReply | ProctorError) -> None:
    """Hand an answer to whoever waits for it, if somebody still does."""
    if answer.done():
        return
    if isinstance(said, BatchedReply):
        answer.set_result(said)
    else:
        answer.set_exception(said)
