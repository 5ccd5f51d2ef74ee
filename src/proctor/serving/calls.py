"""Open gRPC calls: their messages, and the end of a call that pauses for too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from proctor.errors import ProtocolError
from proctor.serving.senders import Sender, Senders


class ClientSilent(Exception):
    """A client did not send its next message in time, or its slot was given to another call."""


class OpenCall:
    """A call that counts until it ends.

    gRPC itself only bounds the total number, so silent calls of one client could block the port.
    """

    def __init__(self) -> None:
        self.sender: Sender | None = None
        self._loop = asyncio.get_running_loop()
        self._deadline: asyncio.Timeout | None = None
        self._is_cut = False

    @classmethod
    def counted(cls, senders: Senders, context: Any) -> OpenCall | None:
        """Count a call; return None if its client, or all clients together, have too many."""
        call = cls()
        call.sender = senders.open(call._cut_from_any_thread, context.peer())
        if call.sender is None:
            return None
        context.add_done_callback(call.sender.close)
        return call

    async def messages(self, received: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """Yield the call's messages; the caller notes what it still holds of them.

        Raises:
            ClientSilent: the next message did not arrive in time, or there is no memory for it.
        """
        assert self.sender is not None
        source = aiter(received)
        while True:
            self.sender.wait()
            try:
                async with asyncio.timeout(0 if self._is_cut else None) as self._deadline:
                    message = await anext(source)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise ClientSilent from None
            finally:
                self._deadline = None
            self.sender.work()
            if not self.sender.hold(self.sender.held + len(message)):
                raise ClientSilent
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

    def done_with_message(self) -> None:
        """Note that a valid message is complete, and that nothing is held any more."""
        assert self.sender is not None
        self.sender.work(proven=True)
        self.sender.hold(0)

    def _cut_from_any_thread(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        self._is_cut = True
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(self._loop.time())
