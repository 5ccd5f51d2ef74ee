"""WebSockets: who may come in, how much they may say, and answers to whoever asks for health."""

from __future__ import annotations

import asyncio
import contextlib
import http
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from proctor.errors import strip_control_codes
from proctor.serving.limits import OpenEndpoint, ServerLimits, bound_socket, cannot_listen
from proctor.system.loopback import REFUSAL
from proctor.system.optional import LOAD_ERRORS, import_failure

try:
    from websockets.asyncio.server import ServerConnection, serve
    from websockets.exceptions import ConnectionClosed
    from websockets.http11 import Request, Response
except LOAD_ERRORS as error:
    raise import_failure(error, "websockets", "wire") from None

_OPEN_S, _CLOSE_S = 10.0, 1.0
_MAX_FRAGMENTS, _MAX_TEXT = 4096, 2**16
"""Fragments of a message, and characters of a text that are kept."""
_WORDS = {"Api-Key", "Bearer"}
ClientHandler = Callable[["ClientConnection"], Awaitable[None]]


@dataclass(frozen=True)
class WebSocketHandler:
    """A protocol over WebSockets: who holds a conversation, and what is asked by plain HTTP."""

    handle: ClientHandler
    pages: Mapping[str, Callable[[], Mapping[str, Any] | str]]
    """By path: JSON, or a text."""


class ClientDisconnected(Exception):
    """Whoever was on the line is gone, or was silent for too long."""


class ClientConnection:
    """A connection to one guest."""

    def __init__(self, connection: ServerConnection, idle_s: float) -> None:
        self._socket, self._idle_s = connection, idle_s
        self._waits_since: float | None = None
        """Since when the guest is waited for; None while it waits for us."""
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(idle_s, self._check_idle)

    def _check_idle(self) -> None:
        """Cut the guest off where it was waited for too long. One timer, however much is said."""
        now, since = self._loop.time(), self._waits_since
        due = (now if since is None else since) + self._idle_s
        if due <= now:
            self._socket.transport.abort()
        else:
            self._timer = self._loop.call_at(due, self._check_idle)

    def stop_idle_timer(self) -> None:
        """Look after the guest no more."""
        self._timer.cancel()

    async def receive(self) -> bytes | str:
        """Return what the guest says next.

        Raises:
            GuestLeft: nothing more will come.
        """
        with self._waiting():
            return await self._message()

    async def send(self, frame: bytes | str) -> None:
        """Send a frame.

        Raises:
            GuestLeft: it is not taken.
        """
        with self._waiting():
            await self._socket.send(frame)

    async def _message(self) -> bytes | str:
        """Receive the next message; of a text only the end is kept, for no protocol has texts."""
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
        self._waits_since = self._loop.time()
        try:
            yield
        except (ConnectionClosed, OSError):
            raise ClientDisconnected from None
        finally:
            self._waits_since = None


async def listen(handler: WebSocketHandler, port: int, limits: ServerLimits) -> OpenEndpoint:
    """Listen on ``port`` (0: any free one) and hold a conversation with everyone who may come.

    Raises:
        UsageError: the port is taken, or the address is none of this machine's.
    """
    sessions: set[ServerConnection] = set()

    async def handle(session: ServerConnection) -> None:
        sessions.add(session)
        connection = ClientConnection(session, limits.idle_s)
        try:
            with contextlib.suppress(ClientDisconnected):
                await handler.handle(connection)
        except Exception as error:
            print(strip_control_codes(f"a guest was left alone: {error!r}"), file=sys.stderr)
            raise
        finally:
            connection.stop_idle_timer()
            sessions.discard(session)

    def answer(session: ServerConnection, request: Request) -> Response | None:
        told = request.headers
        if limits.is_foreign(told.get_all("Host"), told.get_all("Origin")):
            return session.respond(http.HTTPStatus.FORBIDDEN, f"{REFUSAL}\n")
        path = urlsplit(request.path).path
        if path in handler.pages:
            return _page(session, handler.pages[path]())
        if not limits.accepts_key(_key_in(request)):
            return session.respond(
                http.HTTPStatus.UNAUTHORIZED, "the API key is missing or wrong\n"
            )
        if len(sessions) >= limits.max_clients:
            return session.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")
        return None

    try:
        server = await serve(
            handle,
            sock=bound_socket(limits.host, port),
            process_request=answer,
            ssl=limits.ssl_context(),
            compression=None,
            max_size=limits.max_bytes,
            max_queue=2,
            open_timeout=_OPEN_S,
            close_timeout=_CLOSE_S,
            logger=_quiet(),
        )
    except OSError as error:
        raise cannot_listen(limits.host, port, error.strerror) from None

    async def close() -> None:
        server.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), _CLOSE_S)

    return OpenEndpoint(server.sockets[0].getsockname()[1], close)


def _page(connection: ServerConnection, said: Mapping[str, Any] | str) -> Response:
    if isinstance(said, str):
        return connection.respond(http.HTTPStatus.OK, said)
    response = connection.respond(http.HTTPStatus.OK, json.dumps(said))
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = "application/json"
    return response


def _key_in(request: Request) -> str | None:
    """Return the key that a guest shows: in the header, or as ?api_key= where it can set none."""
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    if kind in _WORDS:
        return key
    asked = parse_qs(urlsplit(request.path).query, max_num_fields=16)
    return asked.get("api_key", [None])[0]


def _quiet() -> logging.Logger:
    """Return a log that nobody reads: that strangers break off is no news, the rest is printed."""
    log = logging.getLogger("proctor.serving")
    log.setLevel(logging.CRITICAL + 1)
    log.propagate = False
    return log
