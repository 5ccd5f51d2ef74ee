"""WebSocket endpoints: access control, limits, and health pages by plain HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from proctor.errors import strip_control_codes
from proctor.serving.senders import Sender, Senders, aborting
from proctor.system.limits import OpenEndpoint, ServerLimits, bound_socket, cannot_listen
from proctor.system.loopback import REFUSAL
from proctor.system.platform.optional import LOAD_ERRORS, import_failure

try:
    from websockets.asyncio.server import Server, ServerConnection, serve
    from websockets.exceptions import ConnectionClosed
    from websockets.http11 import Request, Response
except LOAD_ERRORS as error:
    raise import_failure(error, "websockets", "wire") from None

_CLOSE_S = 1.0
_MAX_FRAGMENTS, _MAX_TEXT = 4096, 2**16
"""Limits: fragments of a message, and characters of a text that are kept."""
_FRAME_BYTES = 14
"""Header of a frame."""
_AUTH_SCHEMES = {"Api-Key", "Bearer"}
ClientHandler = Callable[["ClientConnection"], Awaitable[None]]


@dataclass(frozen=True)
class WebSocketHandler:
    """A protocol over WebSockets: the coroutine that serves a client, and plain HTTP pages."""

    handle: ClientHandler
    pages: Mapping[str, Callable[[], Mapping[str, Any] | str]]
    """Content by path: JSON, or a text."""


class ClientDisconnected(Exception):
    """The client has disconnected, or was silent for too long."""


class _CountedConnection(ServerConnection):
    """A connection whose bytes and pauses count from its first byte on."""

    sender: Sender | None = None

    def __init__(self, protocol: Any, server: Server, *, senders: Senders, **options: Any) -> None:
        super().__init__(protocol, server, **options)
        self._senders = senders

    def connection_made(self, transport: Any) -> None:
        """Count the connection, or abort it."""
        super().connection_made(transport)
        self.sender = self._senders.open(aborting(transport))
        if self.sender is None:
            transport.abort()
        else:
            self.sender.wait()

    def data_received(self, data: bytes) -> None:
        """Count bytes before the library keeps them."""
        sender = self.sender
        if sender is None or not sender.hold(sender.held + len(data)):
            self.transport.abort()
            return
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back what the connection held."""
        if self.sender is not None:
            self.sender.close()
        super().connection_lost(exc)


class ClientConnection:
    """A connection to one client."""

    def __init__(self, connection: ServerConnection, sender: Sender) -> None:
        self._socket, self._sender = connection, sender

    async def receive(self) -> bytes | str:
        """Return the client's next frame.

        Raises:
            ClientDisconnected: the client is gone.
        """
        with self._waiting():
            message = await self._message()
        self._sender.work(proven=True)
        self._sender.hold(max(0, self._sender.held - len(message) - _FRAME_BYTES))
        return message

    async def send(self, frame: bytes | str) -> None:
        """Send a frame.

        Raises:
            ClientDisconnected: the client does not receive it.
        """
        with self._waiting():
            await self._socket.send(frame)

    async def _message(self) -> bytes | str:
        """Receive the next message; only the end of a text is kept: no protocol uses texts."""
        parts: list[Any] = []
        fragments = 0
        async for part in self._socket.recv_streaming():
            fragments += 1
            if isinstance(part, str):
                parts = [part[-_MAX_TEXT:]]
            else:
                parts.append(part)
            if fragments > _MAX_FRAGMENTS:
                self._socket.transport.abort()
                raise ClientDisconnected
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        self._sender.wait()
        try:
            yield
        except (ConnectionClosed, OSError):
            raise ClientDisconnected from None
        finally:
            self._sender.work()


async def listen(
    handler: WebSocketHandler, port: int, limits: ServerLimits, senders: Senders
) -> OpenEndpoint:
    """Listen on ``port`` (0: any free port) and serve all admitted clients."""
    sessions: set[ServerConnection] = set()

    async def handle(session: ServerConnection) -> None:
        assert isinstance(session, _CountedConnection)
        if session.sender is None:
            return
        sessions.add(session)
        session.sender.hold(0)  # the request's header
        connection = ClientConnection(session, session.sender)
        try:
            with contextlib.suppress(ClientDisconnected):
                await handler.handle(connection)
        except Exception as error:
            print(strip_control_codes(f"a client's connection failed: {error!r}"), file=sys.stderr)
            raise
        finally:
            sessions.discard(session)

    def answer(session: ServerConnection, request: Request) -> Response | None:
        headers = request.headers
        if limits.is_foreign(headers.get_all("Host"), headers.get_all("Origin")):
            return session.respond(http.HTTPStatus.FORBIDDEN, f"{REFUSAL}\n")
        path = urlsplit(request.path).path
        if path in handler.pages:
            return _page(session, handler.pages[path]())
        if not limits.accepts_key(_key_in(request)):
            return session.respond(
                http.HTTPStatus.UNAUTHORIZED, "the API key is missing or wrong\n"
            )
        if len(sessions) >= limits.max_clients and not senders.make_room():
            return session.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")
        return None

    connect: Any = functools.partial(_CountedConnection, senders=senders)
    try:
        server = await serve(
            handle,
            sock=bound_socket(limits.host, port),
            process_request=answer,
            ssl=limits.ssl_context(),
            compression=None,
            max_size=limits.max_bytes,
            max_queue=2,
            open_timeout=limits.open_s,
            close_timeout=_CLOSE_S,
            logger=_quiet(),
            ping_interval=None,  # a simulator between two requests answers no ping; idle_s ends it
            create_connection=connect,
        )
    except OSError as error:
        raise cannot_listen(limits.host, port, error.strerror) from None

    async def close() -> None:
        server.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), _CLOSE_S)

    return OpenEndpoint(server.sockets[0].getsockname()[1], close)


def _page(connection: ServerConnection, content: Mapping[str, Any] | str) -> Response:
    if isinstance(content, str):
        return connection.respond(http.HTTPStatus.OK, content)
    response = connection.respond(http.HTTPStatus.OK, json.dumps(content))
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = "application/json"
    return response


def _key_in(request: Request) -> str | None:
    """Return the key from the header, or from ?api_key= for clients that cannot set headers."""
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    if kind in _AUTH_SCHEMES:
        return key
    query = parse_qs(urlsplit(request.path).query, max_num_fields=16)
    return query.get("api_key", [None])[0]


def _quiet() -> logging.Logger:
    """Return a silenced logger: disconnects are normal, and other errors are printed."""
    log = logging.getLogger("proctor.serving")
    log.setLevel(logging.CRITICAL + 1)
    log.propagate = False
    return log
