"""ZeroMQ endpoints for REQ sockets: access control, limits, and a reply to each request."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

from proctor.errors import ProtocolError, strip_control_codes
from proctor.protocols.zmtp import frames as zmtp
from proctor.serving.senders import Sender, Senders, aborting
from proctor.system.limits import OpenEndpoint, ServerLimits, bound_socket, cannot_listen

_BUFFER = 2**20
_PARTS, _MOST_PARTS = 2, 64
"""Parts of a request (an empty part and the body), and of a message that is read and refused."""
_MAX_UNAUTHENTICATED, _SMALL_BYTES = 4, 2**16
"""Unauthenticated clients that may send a large request at the same time, and what is large."""
_MAX_REFUSED = 8
"""Consecutive requests that are invalid or lack the key, before the client is disconnected."""
_MAX_COMMANDS, _COMMANDS_S = 256, 1.0
"""Limit of commands, such as heartbeats, in so many seconds."""


@dataclass
class ZmqClient:
    """A connected client."""

    answer: Callable[[bytes], Awaitable[bytes]]
    authenticated: bool = True
    """Whether the client has sent the right key."""


@dataclass(frozen=True)
class ZmqHandler:
    """A protocol of requests and replies over ZeroMQ."""

    handle: Callable[[], contextlib.AbstractContextManager[ZmqClient]]
    """Context manager that yields a client for a new connection."""
    refuse: Callable[[str], bytes]
    """Encodes an error message as a reply."""


class _Disconnected(Exception):
    """The client is gone, was silent for too long, or speaks another protocol."""


@contextlib.contextmanager
def _disconnecting() -> Iterator[None]:
    try:
        yield
    except (ProtocolError, OSError, EOFError):  # TimeoutError is an OSError
        raise _Disconnected from None


class _ZmqConnection:
    """A connection to one client."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limits: ServerLimits,
        unauthenticated: asyncio.Semaphore,
        sender: Sender,
    ) -> None:
        self._reader, self._writer, self._sender = reader, writer, sender
        self._limits, self._max_bytes = limits, limits.max_bytes
        self._requests: asyncio.Queue[bytes | ProtocolError | None] = asyncio.Queue(1)
        self._unauthenticated = unauthenticated
        """Slots for large requests of unauthenticated clients."""
        self._has_slot = False
        self._commands, self._commands_since = 0, 0.0

    async def greet(self) -> None:
        """Perform the ZMTP handshake.

        Raises:
            _Disconnected: the client is gone or speaks another protocol.
        """
        with _disconnecting():
            async with asyncio.timeout(self._limits.open_s):
                self._writer.write(zmtp.GREETING)
                greeting = await self._reader.readexactly(zmtp.GREETING_BYTES)
                zmtp.check_null(zmtp.check_greeting(greeting))
                self._writer.write(zmtp.ready_command())
                flags = await self._flags()
                zmtp.check_ready(await self._command(await self._size(flags.size_bytes)))

    async def read(self, client: ZmqClient) -> None:
        """Read at most one request ahead, so that heartbeats are answered meanwhile."""
        with contextlib.suppress(_Disconnected), _disconnecting():
            while True:
                await self._requests.put(await self._request(client))
        await self._requests.put(None)

    def check_key_shown(self, client: ZmqClient) -> None:
        """Release the slot of a client; disconnect it if it is still unauthenticated.

        Raises:
            _Disconnected: the client sent a large request without the key.
        """
        if self._has_slot:
            self.release_slot()
            if not client.authenticated:
                raise _Disconnected

    def release_slot(self) -> None:
        """Release the slot for a large request, if the connection holds one."""
        if self._has_slot:
            self._has_slot = False
            self._unauthenticated.release()

    async def receive(self) -> bytes | ProtocolError:
        """Return the next request, or the error for an invalid one.

        Raises:
            _Disconnected: the client is gone.
        """
        self._sender.wait()
        request = await self._requests.get()
        if request is None:
            raise _Disconnected
        self._sender.work(proven=True)
        return request

    async def send(self, reply: bytes) -> None:
        """Send a reply.

        Raises:
            _Disconnected: the client does not receive it.
        """
        self._sender.wait()
        with _disconnecting():
            self._writer.write(zmtp.encode_reply(reply))
            await self._writer.drain()
        self._sender.work()

    async def _request(self, client: ZmqClient) -> bytes | ProtocolError:
        """Read a message to its end; keep only as many parts and bytes as a request may have."""
        kept: list[bytes] = []
        parts, total, more = 0, 0, True
        self._sender.hold(0)  # the request before is being answered
        while more:
            flags = await self._flags()
            size = await self._size(flags.size_bytes)
            if flags.command:
                await self._answer_command(await self._command(size))
                continue
            parts, total, more = parts + 1, total + size, flags.more
            if parts > _MOST_PARTS:
                await self._requests.put(_invalid_request(f"more than {_MOST_PARTS} parts"))
                raise ProtocolError(
                    f"a message has more than {_MOST_PARTS} parts", code="protocol.too-large"
                )
            if parts <= _PARTS and total <= self._max_bytes:
                async with self._slot(client, size):
                    kept.append(b"".join([piece async for piece in self._pieces(size)]))
            else:
                kept.clear()
                async for _ in self._pieces(size):
                    self._sender.hold(1)
        if total > self._max_bytes:
            return ProtocolError(
                f"the request has {total} bytes; the limit is {self._max_bytes} (--max_message_mb)",
                code="protocol.too-large",
            )
        if parts != _PARTS or kept[0]:
            return _invalid_request(f"{parts} parts")
        return kept[1]

    @contextlib.asynccontextmanager
    async def _slot(self, client: ZmqClient, size: int) -> AsyncIterator[None]:
        """Make an unauthenticated client wait for a slot before a large request, with a timeout."""
        if client.authenticated or size <= _SMALL_BYTES:
            yield
            return
        async with asyncio.timeout(self._limits.open_s):
            if not self._has_slot:
                await self._unauthenticated.acquire()
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
        await asyncio.sleep(0)  # let other clients run between many commands

    async def _pieces(self, size: int) -> AsyncIterator[bytes]:
        """Yield ``size`` bytes in pieces as they arrive, which costs less than a growing buffer."""
        while size:
            piece = await self._reader.read(min(size, _BUFFER))
            if not piece:
                raise EOFError
            size -= len(piece)
            if not self._sender.hold(self._sender.held + len(piece)):
                raise EOFError
            yield piece


def _invalid_request(parts: str) -> ProtocolError:
    return ProtocolError(
        f"a request must have an empty part and one body, as REQ sends it; got {parts}",
        code="protocol.invalid-frame",
    )


async def listen(
    handler: ZmqHandler, port: int, limits: ServerLimits, senders: Senders
) -> OpenEndpoint:
    """Listen on ``port`` (0: any free port) and serve all admitted clients."""
    connected: set[asyncio.StreamWriter] = set()
    sessions: set[asyncio.StreamWriter] = set()
    """Those that have finished the handshake."""
    unauthenticated = asyncio.Semaphore(_MAX_UNAUTHENTICATED)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender = senders.open(aborting(writer.transport))
        if sender is None:
            writer.transport.abort()
            return
        sender.wait()
        connected.add(writer)
        connection = _ZmqConnection(reader, writer, limits, unauthenticated, sender)
        try:
            with contextlib.suppress(_Disconnected):
                await connection.greet()
                is_full = len(sessions) >= limits.max_clients and not senders.make_room()
                sessions.add(writer)
                with _refused_client(handler) if is_full else handler.handle() as client:
                    await _serve_client(connection, client, handler)
        except Exception as error:
            print(strip_control_codes(f"a client's connection failed: {error!r}"), file=sys.stderr)
            raise
        finally:
            connection.release_slot()
            sender.close()
            sessions.discard(writer)
            connected.discard(writer)
            writer.transport.abort()

    try:
        server = await asyncio.start_server(
            handle, sock=bound_socket(limits.host, port), limit=_BUFFER
        )
    except OSError as error:
        raise cannot_listen(limits.host, port, error.strerror) from None

    async def close() -> None:
        server.close()
        for writer in list(connected):
            writer.transport.abort()

    return OpenEndpoint(server.sockets[0].getsockname()[1], close)


async def _serve_client(connection: _ZmqConnection, client: ZmqClient, handler: ZmqHandler) -> None:
    """Answer requests until the client disconnects.

    Raises:
        _Disconnected: the client is gone.
    """
    reading = asyncio.ensure_future(connection.read(client))
    try:
        refused = 0
        while refused < _MAX_REFUSED:
            request = await connection.receive()
            if isinstance(request, ProtocolError):
                refused += 1
                await connection.send(handler.refuse(str(request)))
            else:
                await connection.send(await client.answer(request))
                refused = 0 if client.authenticated else refused + 1
            del request
            connection.check_key_shown(client)
    finally:
        reading.cancel()


@contextlib.contextmanager
def _refused_client(handler: ZmqHandler) -> Iterator[ZmqClient]:
    async def answer(request: bytes) -> bytes:
        return handler.refuse("too many connections (--max_connections)")

    yield ZmqClient(answer, authenticated=False)
