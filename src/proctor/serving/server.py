"""Serves one policy by several protocols, each on its own port, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sys
import threading
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from proctor.protocols.inference_messages import Protocol
from proctor.serving.senders import Senders
from proctor.serving.service import PolicyService
from proctor.system.limits import OpenEndpoint, ServerLimits, bound_socket, connection_limit

PORTS = {
    Protocol.OPENPI: 8000,
    Protocol.VLA_EVAL: 8001,
    Protocol.GROOT: 5555,
    Protocol.LEROBOT: 8080,
}
"""Default port of each protocol."""
_SCHEMES = {
    Protocol.OPENPI: "ws",
    Protocol.VLA_EVAL: "vla",
    Protocol.GROOT: "tcp",
    Protocol.LEROBOT: "grpc",
}
_START_S = 30.0
_SAY_EVERY_S = 60.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of accept when the machine or the process has no resources for a connection."""
T = TypeVar("T")


@dataclass(frozen=True)
class Endpoint:
    """A protocol and its port; port 0 means any free port."""

    protocol: Protocol
    port: int


async def _open(
    endpoint: Endpoint, service: PolicyService, limits: ServerLimits, senders: Senders
) -> OpenEndpoint:
    """Start to listen; a protocol's libraries are imported on demand."""
    match endpoint.protocol:
        case Protocol.OPENPI:
            from proctor.serving import openpi
            from proctor.serving.websocket import listen

            return await listen(openpi.handler(service), endpoint.port, limits, senders)
        case Protocol.VLA_EVAL:
            from proctor.serving import vla_eval
            from proctor.serving.websocket import listen

            handler = vla_eval.handler(service, limits)
            return await listen(handler, endpoint.port, limits, senders)
        case Protocol.GROOT:
            from proctor.serving import groot, zeromq

            answers = groot.handler(service, limits)
            return await zeromq.listen(answers, endpoint.port, limits, senders)
        case Protocol.LEROBOT:
            from proctor.serving import lerobot

            return await lerobot.listen(service, endpoint.port, limits, senders)


def check_ports_free(endpoints: Sequence[Endpoint], limits: ServerLimits) -> None:
    """Check that the ports are free, before the policy is loaded, which may take minutes."""
    with contextlib.ExitStack() as held:
        for endpoint in endpoints:
            held.enter_context(bound_socket(limits.host, endpoint.port))


@contextlib.contextmanager
def serving(
    endpoints: Sequence[Endpoint], service: PolicyService, limits: ServerLimits
) -> Iterator[list[str]]:
    """Serve all endpoints in a thread; yield their addresses in the form of --policy.url."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_LoopErrors())
    thread = threading.Thread(target=loop.run_forever, name="proctor-serving", daemon=True)
    thread.start()
    opened: list[OpenEndpoint] = []
    most = connection_limit(len(endpoints) * 2 * limits.max_clients)
    senders = Senders(limits, most, limits.memory_bytes)

    def wait_for(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(_START_S)

    try:
        for endpoint in endpoints:
            opened.append(wait_for(_open(endpoint, service, limits, senders)))
        yield [_address(d, o.port, limits) for d, o in zip(endpoints, opened, strict=True)]
    finally:
        for one in opened:
            wait_for(one.close())
        senders.close()
        wait_for(_cancel_tasks())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_START_S)
        if not thread.is_alive():
            loop.close()


class _LoopErrors:
    """Handles errors of the event loop itself.

    If no descriptor or memory is left for a connection, asyncio retries after a second.
    """

    def __init__(self) -> None:
        self._said_at = -_SAY_EVERY_S

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, ValueError) and "_start_serving" in repr(context.get("handle")):
            return  # asyncio's retry after an exhaustion, on a socket that was closed meanwhile
        if not isinstance(error, OSError) or error.errno not in _EXHAUSTED:
            loop.default_exception_handler(context)
        elif loop.time() - self._said_at >= _SAY_EVERY_S:
            self._said_at = loop.time()
            print(
                f"cannot accept connections: {error.strerror}; retrying until descriptors or "
                "memory are free (ulimit -n, --max_connections)",
                file=sys.stderr,
                flush=True,
            )


async def _cancel_tasks() -> None:
    """Cancel the tasks of all connections."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


def _address(endpoint: Endpoint, port: int, limits: ServerLimits) -> str:
    encrypted = limits.tls is not None and endpoint.protocol is not Protocol.GROOT
    scheme = _SCHEMES[endpoint.protocol] + ("s" if encrypted else "")
    host = f"[{limits.host}]" if ":" in limits.host else limits.host
    return f"{scheme}://{host}:{port}"
