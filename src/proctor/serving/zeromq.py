"""ZeroMQ's REQ sockets: who may come in, how much they may say, and an answer to each request."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

from proctor.errors import ProtocolError, strip_control_codes
from proctor.protocols import zmtp
from proctor.serving.limits import OpenEndpoint, ServerLimits, bound_socket, cannot_listen

_OPEN_S = 10.0
_BUFFER = 2**20
_PARTS, _MOST_PARTS = 2, 64
"""Of a request: an empty part and itself. Of a message that is read to its end and refused."""
_MAX_UNKNOWN, _SMALL_BYTES = 4, 2**16
"""Clients that have not shown the key and may each send a request larger than that."""


_MAX_REFUSED = 8
"""Requests in a row that are none, or have no key: a peer can send many of them at no cost."""
_MAX_COMMANDS, _COMMANDS_S = 256, 1.0
"""Heartbeats in so many seconds."""


@dataclass
class ZmqClient:
    """A conversation with one client."""

    answer: Callable[[bytes], Awaitable[bytes]]
    authenticated: bool = True
    """Whether the client has shown the key."""


@dataclass(frozen=True)
class ZmqHandler:
    """A protocol of requests and replies."""

    handle: Callable[[], contextlib.AbstractContextManager[ZmqClient]]
    """Begins a conversation with somebody, who is answered by what it yields."""
    refuse: Callable[[str], bytes]
    """Says in a reply why there is no answer."""


class _Disconnected(Exception):
    """Whoever was on the line is gone, was silent for too long, or speaks something else."""


@contextlib.contextmanager
def _disconnecting() -> Iterator[None]:
    try:
        yield
    except (ProtocolError, OSError, EOFError):  # a time that is over is one of the second
        raise _Disconnected from None


class _ZmqConnection:
    """A connection to one guest."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limits: ServerLimits,
        unknown: asyncio.Semaphore,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._max_bytes, self._idle_s = limits.max_bytes, limits.idle_s
        self._requests: asyncio.Queue[bytes | ProtocolError | None] = asyncio.Queue(1)
        self._unknown = unknown
        """The places for large requests of clients that have not shown the key."""
        self._has_slot = False
        self._commands, self._commands_since = 0, 0.0

    async def greet(self) -> None:
        """Shake hands.

        Raises:
            _GuestLeft: it is somebody else, or gone.
        """
        with _disconnecting():
            async with asyncio.timeout(_OPEN_S):
                self._writer.write(zmtp.GREETING)
                zmtp.check_greeting(await self._reader.readexactly(zmtp.GREETING_BYTES))
                self._writer.write(zmtp.ready_command())
                flags = await self._flags()
                zmtp.check_ready(await self._command(await self._size(flags.size_bytes)))

    async def read(self, handler: ZmqClient) -> None:
        """Read requests ahead of who hears them, one at most, so that heartbeats are answered."""
        with contextlib.suppress(_Disconnected), _disconnecting():
            while True:
                await self._requests.put(await self._request(handler))
        await self._requests.put(None)

    def check_key_shown(self, handler: ZmqClient) -> None:
        """Give the place back of a client that has shown the key, and hang up on one that has not.

        Raises:
            _GuestLeft: it sent a large request, and no key.
        """
        if self._has_slot:
            self.release_slot()
            if not handler.authenticated:
                raise _Disconnected

    def release_slot(self) -> None:
        """Give the place for a large request back, if it has one."""
        if self._has_slot:
            self._has_slot = False
            self._unknown.release()

    async def receive(self) -> bytes | ProtocolError:
        """Return the next request, or what is wrong with it.

        Raises:
            _GuestLeft: nothing more will come.
        """
        with _disconnecting():
            async with asyncio.timeout(self._idle_s):
                heard = await self._requests.get()
        if heard is None:
            raise _Disconnected
        return heard

    async def send(self, reply: bytes) -> None:
        """Send a reply.

        Raises:
            _GuestLeft: it is not taken.
        """
        with _disconnecting():
            async with asyncio.timeout(self._idle_s):
                self._writer.write(zmtp.encode_reply(reply))
                await self._writer.drain()

    async def _request(self, handler: ZmqClient) -> bytes | ProtocolError:
        """Read a message to its end, and keep what a request may have."""
        kept: list[bytes] = []
        parts, total, more = 0, 0, True
        while more:
            flags = await self._flags()
            size = await self._size(flags.size_bytes)
            if flags.command:
                await self._answer_command(await self._command(size))
                continue
            parts, total, more = parts + 1, total + size, flags.more
            if parts > _MOST_PARTS:
                await self._requests.put(_invalid_request(f"more than {_MOST_PARTS}"))
                raise ProtocolError("it does not end", code="protocol.too-large")
            if parts <= _PARTS and total <= self._max_bytes:
                async with self._slot(handler, size):
                    kept.append(b"".join([piece async for piece in self._pieces(size)]))
            else:
                kept.clear()
                async for _ in self._pieces(size):
                    pass
        if total > self._max_bytes:
            return ProtocolError(
                f"the request is of {total} bytes, at most {self._max_bytes} are taken "
                "(--max_message_mb)",
                code="protocol.too-large",
            )
        if parts != _PARTS or kept[0]:
            return _invalid_request(f"{parts} in all")
        return kept[1]

    @contextlib.asynccontextmanager
    async def _slot(self, handler: ZmqClient, size: int) -> AsyncIterator[None]:
        """Let a client without the key wait for its turn to send much, and send it soon."""
        if handler.authenticated or size <= _SMALL_BYTES:
            yield
            return
        async with asyncio.timeout(_OPEN_S):
            if not self._has_slot:
                await self._unknown.acquire()
                self._has_slot = True
            yield

    async def _flags(self) -> zmtp.Flags:
        return zmtp.parse_flags((await self._reader.readexactly(1))[0])

    async def _size(self, size_bytes: int) -> int:
        return int.from_bytes(await self._reader.readexactly(size_bytes), "big")

    async def _command(self, size: int) -> bytes:
        if size > zmtp.MOST_COMMAND:
            raise ProtocolError(f"a command of {size} bytes", code="protocol.too-large")
        return await self._reader.readexactly(size)

    async def _answer_command(self, command: bytes) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._commands_since > _COMMANDS_S:
            self._commands, self._commands_since = 0, now
        self._commands += 1
        if self._commands > _MAX_COMMANDS:
            raise ProtocolError("too many commands", code="protocol.too-many-commands")
        pong = zmtp.pong_reply(command)
        if pong is not None:
            self._writer.write(pong)
            await self._writer.drain()
        await asyncio.sleep(0)  # a thousand at once are not read at the others' cost

    async def _pieces(self, size: int) -> AsyncIterator[bytes]:
        """Read so many bytes as they come: a buffer that grows to hold them costs more."""
        while size:
            piece = await self._reader.read(min(size, _BUFFER))
            if not piece:
                raise EOFError
            size -= len(piece)
            yield piece


def _invalid_request(parts: str) -> ProtocolError:
    return ProtocolError(
        f"a request is one part behind an empty one, as REQ sends it, not {parts}",
        code="protocol.invalid-frame",
    )


async def listen(handler: ZmqHandler, port: int, limits: ServerLimits) -> OpenEndpoint:
    """Listen on ``port`` (0: any free one) and answer everyone who may come.

    Raises:
        UsageError: the port is taken, or the address is none of this machine's.
    """
    sessions: set[asyncio.StreamWriter] = set()
    unknown = asyncio.Semaphore(_MAX_UNKNOWN)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(sessions) >= 2 * limits.max_clients:
            writer.transport.abort()
            return
        crowded = len(sessions) >= limits.max_clients
        sessions.add(writer)
        connection = _ZmqConnection(reader, writer, limits, unknown)
        try:
            with contextlib.suppress(_Disconnected):
                await connection.greet()
                with _refused_client(handler) if crowded else handler.handle() as conversation:
                    await _serve_client(connection, conversation, handler)
        except Exception as error:
            print(strip_control_codes(f"a guest was left alone: {error!r}"), file=sys.stderr)
            raise
        finally:
            connection.release_slot()
            sessions.discard(writer)
            writer.transport.abort()

    try:
        server = await asyncio.start_server(
            handle, sock=bound_socket(limits.host, port), limit=_BUFFER
        )
    except OSError as error:
        raise cannot_listen(limits.host, port, error.strerror) from None

    async def close() -> None:
        server.close()
        for session in list(sessions):
            session.transport.abort()

    return OpenEndpoint(server.sockets[0].getsockname()[1], close)


async def _serve_client(
    connection: _ZmqConnection, conversation: ZmqClient, handler: ZmqHandler
) -> None:
    """Answer requests, or say what is wrong with them.

    Raises:
        _GuestLeft: in the end.
    """
    reading = asyncio.ensure_future(connection.read(conversation))
    try:
        refused = 0
        while refused < _MAX_REFUSED:
            request = await connection.receive()
            if isinstance(request, ProtocolError):
                refused += 1
                await connection.send(handler.refuse(str(request)))
            else:
                await connection.send(await conversation.answer(request))
                refused = 0 if conversation.authenticated else refused + 1
            del request
            connection.check_key_shown(conversation)
    finally:
        reading.cancel()


@contextlib.contextmanager
def _refused_client(handler: ZmqHandler) -> Iterator[ZmqClient]:
    async def answer(request: bytes) -> bytes:
        return handler.refuse("too many connections (--max_connections)")

    yield ZmqClient(answer, authenticated=False)
