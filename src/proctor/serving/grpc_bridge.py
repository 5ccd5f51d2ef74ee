"""Asyncio handlers behind gRPC's threaded server.

gRPC's own asyncio server stops when a client names a method by bytes that are not UTF-8 (grpcio
1.85), and that needs no key. The threaded server answers such a call and continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, NoReturn

from proctor.system.limits import ServerLimits, connection_limit
from proctor.system.platform.optional import LOAD_ERRORS, import_failure

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are printed by Proctor instead
try:
    import grpc
except LOAD_ERRORS as error:
    raise import_failure(error, "grpc", "wire", "grpcio") from None

Handler = Callable[[AsyncIterator[bytes], "GrpcCall"], Awaitable[bytes]]
"""Answers a call, given an iterator of its messages, read on demand, and the call itself."""
_STOP_S = 0.2
_MOST_CONNECTIONS = 4096
"""Far more than clients, so that strangers without a call do not take their places."""
_LOG = "grpc._cython.cygrpc"


def server_credentials(limits: ServerLimits) -> Any | None:
    """Return the TLS credentials of a gRPC server; None without TLS."""
    if limits.tls is None:
        return None
    limits.ssl_context()  # raises if the files are invalid
    certificate, key = (file.read_bytes() for file in limits.tls)
    return grpc.ssl_server_credentials([(key, certificate)])


def connection_options(limits: ServerLimits) -> list[tuple[str, int]]:
    """Return the options of a gRPC server that bound its connections and those without a call."""
    open_ms = int(limits.open_s * 1000)
    return [
        ("grpc.max_allowed_incoming_connections", connection_limit(_MOST_CONNECTIONS)),
        ("grpc.server_handshake_timeout_ms", open_ms),
        ("grpc.max_connection_idle_ms", open_ms),
        ("grpc.so_reuseport", 0),
    ]


class _Aborted(Exception):
    """A handler ended its call with a status."""

    def __init__(self, code: Any, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


class _CallEnded(Exception):
    """The client has disconnected."""


class GrpcCall:
    """A call, as handlers use it."""

    def __init__(self, context: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._context, self._loop = context, loop

    def peer(self) -> str:
        """Return the name of the client's connection."""
        return str(self._context.peer())

    def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
        """Return the metadata that the client sent with the call."""
        return [(name, value) for name, value in self._context.invocation_metadata() or ()]

    def add_done_callback(self, done: Callable[[], None]) -> None:
        """Have ``done`` called by the event loop when the call has ended."""

        def ended() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(done)

        if not self._context.add_callback(ended):
            self._loop.call_soon(done)

    def send_initial_metadata(self, metadata: tuple[tuple[str, bytes], ...]) -> None:
        """Send metadata before the reply."""
        self._context.send_initial_metadata(metadata)

    def abort(self, code: Any, details: str) -> NoReturn:
        """End the call with a status."""
        raise _Aborted(code, details)


class GrpcServer:
    """A server whose handlers run in the event loop that made it."""

    def __init__(
        self, service: str, handlers: Mapping[str, Handler], options: Any, max_calls: int
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls = ThreadPoolExecutor(max_calls, "proctor-grpc-call")
        self._readers = ThreadPoolExecutor(max_calls, "proctor-grpc-read")
        """Two pools, so that a call can end while its next message is being read."""
        hide_invalid_metadata()
        self._server = grpc.server(self._calls, options=options, maximum_concurrent_rpcs=max_calls)
        methods = {
            name: grpc.stream_unary_rpc_method_handler(self._threaded(handler))
            for name, handler in handlers.items()
        }
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, methods)]
        )

    def bind(self, address: str, credentials: Any | None) -> int:
        """Bind an address and return its port; 0 if it cannot be bound."""
        try:
            if credentials is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError:
            return 0

    def start(self) -> None:
        """Start serving."""
        self._server.start()

    async def close(self) -> None:
        """End all calls."""
        stopped = self._server.stop(_STOP_S)
        await asyncio.to_thread(stopped.wait)
        for pool in (self._calls, self._readers):
            pool.shutdown(wait=False)

    def _threaded(self, handler: Handler) -> Callable[[Iterator[bytes], Any], bytes]:
        """Return a synchronous handler, which gRPC calls on one of its threads."""

        async def answered(messages: Iterator[bytes], context: Any) -> bytes:
            return await handler(self._messages(messages), GrpcCall(context, self._loop))

        def answer(messages: Iterator[bytes], context: Any) -> bytes:
            work = asyncio.run_coroutine_threadsafe(answered(messages, context), self._loop)
            if not context.add_callback(work.cancel):
                work.cancel()
            try:
                return work.result()
            except _Aborted as aborted:
                context.abort(aborted.code, aborted.details)
            except (CancelledError, _CallEnded):
                pass  # the client has disconnected
            return b""

        return answer

    async def _messages(self, messages: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Yield a call's messages, each read on demand."""
        while True:
            message = await self._loop.run_in_executor(self._readers, _next, messages)
            if message is None:
                return
            yield message


def _next(messages: Iterator[bytes]) -> bytes | None:
    try:
        return next(messages, None)
    except grpc.RpcError:
        raise _CallEnded from None


def hide_invalid_metadata() -> None:
    """Keep invalid metadata of clients out of gRPC's log."""
    logging.getLogger(_LOG).addFilter(_is_worth_logging)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Return whether to keep a record of gRPC's log; invalid metadata encoding is dropped."""
    return not str(record.msg).startswith("Invalid encoding")
