"""The policy service that all protocols share: batcher, inputs and server description."""

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
    """A policy, ready to be served by any protocol."""

    batcher: RequestBatcher
    inputs: Inputs
    server_info: ServerInfo
    once: WarnOnce = field(default_factory=WarnOnce)
    """Prints each mapping of a client's names once."""

    @contextlib.contextmanager
    def session(self) -> Iterator[ClientSession]:
        """Open a session, and close it at the end."""
        session = self.batcher.open_session()
        try:
            yield session
        finally:
            self.batcher.close_session(session)

    async def answer(
        self, session: ClientSession, request: InferenceRequest, aliases: Mapping[str, str]
    ) -> BatchedReply:
        """Return the reply to a request."""
        rows = self.inputs.rows(request, aliases)
        self._print_aliases(request, aliases)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[BatchedReply] = loop.create_future()

        def on_reply(reply: BatchedReply | ProctorError) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_resolve, answer, reply)

        self.batcher.submit(session, request, rows, on_reply)
        return await answer

    def _print_aliases(self, request: InferenceRequest, aliases: Mapping[str, str]) -> None:
        """Print how a client's names are mapped to the policy's, so that its user can check it."""
        if request.episode is not None:
            return
        known = request.observation
        taken = ", ".join(f"{name} is {key}" for key, name in aliases.items() if key not in known)
        if taken:
            self.once.warn(f"a client's {taken}")

    def observe(
        self, session: ClientSession, request: InferenceRequest, aliases: Mapping[str, str]
    ) -> None:
        """Add an observation without a reply."""
        self.batcher.observe(session, self.inputs.rows(request, aliases))

    def health(self) -> dict[str, Any]:
        """Return counters for the health page."""
        batcher = self.batcher
        mean = batcher.answered / batcher.batches if batcher.batches else None
        return {
            "status": "ok",
            "answered": batcher.answered,
            "batches": batcher.batches,
            "batch": mean,
        }


def _resolve(answer: asyncio.Future[BatchedReply], reply: BatchedReply | ProctorError) -> None:
    """Resolve the future of a request, unless the client has gone."""
    if answer.done():
        return
    if isinstance(reply, BatchedReply):
        answer.set_result(reply)
    else:
        answer.set_exception(reply)
