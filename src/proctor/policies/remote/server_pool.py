"""Pool of servers of one policy: load balancing, and failover after lost connections."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from proctor.errors import (
    ConnectionLost,
    EpisodeStateLost,
    ProtocolError,
    UsageError,
    strip_control_codes,
)
from proctor.features import Array
from proctor.policies.remote.address import Address
from proctor.policies.remote.connection import Connector, ServerConnection
from proctor.protocols.inference_messages import InferenceRequest, ServerInfo
from proctor.types import EpisodeSpec

_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_WARN_EVERY_S = 30.0
"""Minimum seconds between two warnings about one lost server."""


@dataclass(eq=False)
class _Server:
    address: Address
    idle: list[ServerConnection] = field(default_factory=list)
    episodes: int = 0
    """Number of episodes that are assigned to the server."""
    reply_s: float = 0.0
    """Moving average of the time to a reply, in seconds."""
    losses: int = 0
    """Lost connections since the last reply."""
    not_before: float = 0.0
    """Monotonic time of the next attempt to connect."""
    warned_at: float = -_WARN_EVERY_S
    """Monotonic time of the last warning."""
    label: str | None = None
    """Hash of the server's metadata at the last handshake."""

    @property
    def load(self) -> float:
        """Estimated waiting time of one more episode, in seconds."""
        return (self.episodes + 1) * (self.reply_s or 1e-3)

    def is_down(self, now: float) -> bool:
        """Whether the server is lost: then one episode at a time tries it, the others do not."""
        return self.not_before > now or (self.losses > 0 and self.episodes > 0)


@dataclass(eq=False)
class EpisodeConnection:
    """An episode and its connection; it keeps the connection, since a server may be stateful."""

    spec: EpisodeSpec
    server: _Server | None = None
    connection: ServerConnection | None = None
    answered: bool = False
    """Whether the server has replied, and so may have state of the episode."""


@dataclass(frozen=True)
class ServersInfo:
    """Result of the handshakes: infos of Proctor servers, notes, names of required inputs."""

    infos: list[ServerInfo | None]
    notes: list[str]
    expected_inputs: set[str]


class ServerPool:
    """All servers of a run. Threads may call it concurrently, each for its own episode."""

    def __init__(
        self, addresses: Sequence[Address], open_connection: Connector, retry_s: float
    ) -> None:
        self._servers = [_Server(address) for address in addresses]
        self._open = open_connection
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._connections: set[ServerConnection] = set()
        self._infos: list[ServerInfo | None] = []

    def handshake(self) -> ServersInfo:
        """Connect to every server; return their infos, and notes on those that do not answer."""
        infos: list[ServerInfo | None] = []
        notes: list[str] = []
        expected_inputs: set[str] = set()
        for server in self._servers:
            try:
                connection = self._connect(server)
            except ConnectionLost as lost:
                self._note_loss(server)
                notes.append(str(lost))
            except ProtocolError as error:
                self.close()
                raise UsageError(
                    f"--policy.url={server.address}: {error}", code=error.code
                ) from None
            else:
                infos.append(connection.server_info)
                expected_inputs.update(connection.expected_inputs)
                server.idle.append(connection)
        if not infos:
            raise UsageError(
                f"--policy.url: no server answers: {'; '.join(notes)}", code="server.unreachable"
            )
        labels = {server.label for server in self._servers if server.label is not None}
        if infos[0] is None and len(labels) > 1:
            notes.append("the servers' metadata differ: do they have the same policy?")
        self._infos = infos
        return ServersInfo(infos, notes, expected_inputs)

    def infer(self, episode: EpisodeConnection, request: InferenceRequest) -> Array:
        """Return the actions from the episode's server, or from another one if that is lost."""
        give_up_at, pause_s = 0.0, _PAUSE_S
        while True:
            try:
                return self._infer_once(episode, request)
            except ConnectionLost:
                now = time.monotonic()
                give_up_at = give_up_at or now + self._retry_s
                if now >= give_up_at or self._closed.is_set():
                    raise
            if self._all_down():
                self._closed.wait(min(pause_s, max(0.0, give_up_at - time.monotonic())))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def end(self, episode: EpisodeConnection) -> None:
        """Return the episode's connection to the pool."""
        connection, server = episode.connection, episode.server
        episode.connection = episode.server = None
        if connection is None or server is None:
            return
        try:
            connection.end_episode()
        except ProtocolError:
            self._drop(server, connection)
            return
        with self._lock:
            server.episodes -= 1
            server.idle.append(connection)

    def close(self) -> None:
        """Close all connections; pending requests fail."""
        self._closed.set()
        with self._lock:
            connections, self._connections = list(self._connections), set()
        for connection in connections:
            connection.close()

    def _infer_once(self, episode: EpisodeConnection, request: InferenceRequest) -> Array:
        if episode.connection is None:
            self._assign_server(episode)
        server, connection = episode.server, episode.connection
        assert server is not None
        assert connection is not None
        began = time.perf_counter()
        try:
            actions = connection.infer(request)
        except ConnectionLost as lost:
            self._release(episode, server, connection)
            self._note_loss(server, lost)
            if episode.answered and connection.is_stateful:
                raise EpisodeStateLost(f"{lost}, and with it the state of {episode.spec}") from None
            raise
        except ProtocolError as error:
            self._release(episode, server, connection)
            raise ProtocolError(f"{server.address}: {error}", code=error.code) from None
        took = time.perf_counter() - began
        server.reply_s = took if not server.reply_s else 0.8 * server.reply_s + 0.2 * took
        server.losses, server.not_before = 0, 0.0
        episode.answered = True
        return actions

    def _release(
        self, episode: EpisodeConnection, server: _Server, connection: ServerConnection
    ) -> None:
        episode.connection = episode.server = None
        self._drop(server, connection)

    def _assign_server(self, episode: EpisodeConnection) -> None:
        """Give the episode a connection, to the server with the shortest wait that accepts it."""
        lost: ConnectionLost | None = None
        for server in self._by_load():
            with self._lock:
                server.episodes += 1
            connection: ServerConnection | None = None
            try:
                connection = self._take_idle(server) or self._connect(server)
                connection.start_episode(episode.spec)
            except ProtocolError as error:
                self._drop(server, connection)
                if not isinstance(error, ConnectionLost):
                    raise
                lost = error
                self._note_loss(server, error)
                continue
            episode.server, episode.connection = server, connection
            return
        assert lost is not None
        raise lost

    def _by_load(self) -> list[_Server]:
        """Return the servers by estimated waiting time; lost servers come last."""
        now = time.monotonic()
        with self._lock:
            return sorted(self._servers, key=lambda server: (server.is_down(now), server.load))

    def _take_idle(self, server: _Server) -> ServerConnection | None:
        with self._lock:
            return server.idle.pop() if server.idle else None

    def _connect(self, server: _Server) -> ServerConnection:
        connection = self._open(server.address)
        with self._lock:
            self._connections.add(connection)
            closed = self._closed.is_set()
        if closed:
            connection.close()
            raise ConnectionLost(f"the connection to {server.address} is closed")
        self._check_same_policy(server, connection)
        return connection

    def _check_same_policy(self, server: _Server, connection: ServerConnection) -> None:
        """Refuse a server whose policy is not the one that the run started with."""
        if self._infos and connection.server_info != self._infos[0]:
            self._close_connection(connection)
            named = " and ".join(
                served_policy_name(server_info)
                for server_info in (connection.server_info, self._infos[0])
            )
            raise ProtocolError(
                f"{server.address}: not the policy that the run started with ({named})",
                code="server.policy-changed",
            )
        if server.label not in (None, connection.label) and connection.server_info is None:
            print(
                f"warning: the metadata of {server.address} have changed: is it the same policy?",
                file=sys.stderr,
                flush=True,
            )
        server.label = connection.label

    def _drop(self, server: _Server, connection: ServerConnection | None) -> None:
        with self._lock:
            server.episodes -= 1
        if connection is not None:
            self._close_connection(connection)

    def _close_connection(self, connection: ServerConnection) -> None:
        with self._lock:
            self._connections.discard(connection)
        with contextlib.suppress(ProtocolError):
            connection.close()

    def _note_loss(self, server: _Server, lost: ConnectionLost | None = None) -> None:
        """Delay the next attempt to connect, and close the server's idle connections."""
        with self._lock:
            now = time.monotonic()
            warn = (
                lost is not None and now >= server.warned_at + _WARN_EVERY_S and server.losses == 0
            )
            server.warned_at = now if warn else server.warned_at
            server.losses += 1
            pause_s = min(_PAUSE_S * 2**server.losses, _LONGEST_PAUSE_S)
            server.not_before = time.monotonic() + pause_s
            idle, server.idle = server.idle, []
            self._connections.difference_update(idle)
        for connection in idle:
            connection.close()
        if warn and not self._closed.is_set():
            print(
                strip_control_codes(f"warning: {lost}; trying again"), file=sys.stderr, flush=True
            )

    def _all_down(self) -> bool:
        now = time.monotonic()
        return all(server.not_before > now for server in self._servers)


def served_policy_name(server_info: ServerInfo | None) -> str:
    """Return a policy's name and short fingerprint; for other servers, that it is unknown."""
    return (
        "unknown" if server_info is None else f"{server_info.policy} {server_info.fingerprint[:8]}"
    )
