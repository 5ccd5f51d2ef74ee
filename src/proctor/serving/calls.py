"""Limits of open gRPC calls: calls per client, and the time until the next message."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from proctor.errors import ProtocolError
from proctor.system.limits import ServerLimits

MOST_CALLS = 4
"""Per connection. A robot has two open calls: it sends observations and requests actions."""


class ClientSilent(Exception):
    """A client did not send its next message in time, or its slot was given to another call."""


class OpenCalls:
    """The calls that wait for a message. If there are too many, the longest silent one is ended.

    gRPC itself only bounds the total number, so silent calls of one client could block the port.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._idle_s, self._most_waiting = limits.idle_s, limits.max_clients
        self._calls: Counter[str] = Counter()
        self._waiting: dict[asyncio.Timeout, None] = {}
        """Deadlines of the waiting calls, the longest silent first."""

    def add(self, context: Any) -> bool:
        """Count a call until it ends; return False if its client has too many calls."""
        peer = context.peer()
        if self._calls[peer] >= MOST_CALLS:
            return False
        self._calls[peer] += 1
        context.add_done_callback(lambda: self._remove(peer))
        return True

    async def messages(self, received: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """Yield a call's messages.

        Raises:
            ClientSilent: the next message did not arrive in time.
        """
        source = aiter(received)
        while True:
            try:
                async with asyncio.timeout(self._idle_s) as deadline:
                    message = await self._next(source, deadline)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise ClientSilent from None
            yield message

    async def only_message(self, received: AsyncIterable[bytes]) -> bytes:
        """Return the one message of a call.

        Raises:
            ClientSilent: the message did not arrive in time.
            ProtocolError: the call ended without a message.
        """
        async for message in self.messages(received):
            return message
        raise ProtocolError("the call has no message", code="protocol.missing-field")

    async def _next(self, source: AsyncIterator[bytes], deadline: asyncio.Timeout) -> bytes:
        self._waiting[deadline] = None
        try:
            if len(self._waiting) > self._most_waiting:
                longest_silent = next(iter(self._waiting))
                del self._waiting[longest_silent]
                if not longest_silent.expired():  # else it is ending already
                    longest_silent.reschedule(asyncio.get_running_loop().time())
            return await anext(source)
        finally:
            self._waiting.pop(deadline, None)

    def _remove(self, peer: str) -> None:
        self._calls[peer] -= 1
        if not self._calls[peer]:
            del self._calls[peer]
