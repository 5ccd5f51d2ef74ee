"""Registry of clients by name, for protocols that do not expose connections."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from proctor.serving.batcher import ClientSession, RequestBatcher
from proctor.system.limits import ServerLimits


@dataclass
class RegisteredClient:
    """A client: its sessions, and the time of its last request."""

    sessions: list[ClientSession] = field(default_factory=list)
    last_request_at: float = 0.0


ClientT = TypeVar("ClientT", bound=RegisteredClient)


class ClientRegistry(Generic[ClientT]):
    """The active clients. The client that was silent for longest makes room for a new one."""

    def __init__(
        self, batcher: RequestBatcher, limits: ServerLimits, make: Callable[[], ClientT]
    ) -> None:
        self._batcher, self._limits, self._make = batcher, limits, make
        self._known: OrderedDict[str, ClientT] = OrderedDict()

    def client(self, name: str) -> ClientT:
        """Return the client called ``name``, and drop clients that were silent for too long."""
        now = time.monotonic()
        if name not in self._known:
            self._known[name] = self._make()
        client = self._known[name]
        client.last_request_at = now
        self._known.move_to_end(name)
        while len(self._known) > self._limits.max_clients or self._first_is_silent(now):
            self._forget(self._known.popitem(last=False)[1])
        return client

    def _first_is_silent(self, now: float) -> bool:
        return now - next(iter(self._known.values())).last_request_at > self._limits.idle_s

    def _forget(self, client: ClientT) -> None:
        for session in client.sessions:
            self._batcher.close_session(session)
        client.sessions.clear()
