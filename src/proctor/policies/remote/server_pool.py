"""Several servers of one policy: a slow one holds up nobody else, a lost one's work goes on."""

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
_NEWS_S = 30.0
"""How often at most it is said of a server that it is lost."""


@dataclass(eq=False)
class _Server:
    address: Address
    idle: list[ServerConnection] = field(default_factory=list)
    seats: int = 0
    """Episodes that are with it."""
    usual_s: float = 0.0
    """What an answer takes, lately."""
    losses: int = 0
    """In a row."""
    not_before: float = 0.0
    """When it may be tried again."""
    said_at: float = -_NEWS_S
    """When it was last said that it is lost."""
    word: str | None = None
    """What it said of itself when it was first met."""

    @property
    def load(self) -> float:
        """About how long one more episode waits here."""
        return (self.seats + 1) * (self.usual_s or 1e-3)

    def is_down(self, now: float) -> bool:
        """Whether it was lost: then one episode tries it, now and again, and others go by."""
        return self.not_before > now or (self.losses > 0 and self.seats > 0)


@dataclass(eq=False)
class EpisodeConnection:
    """An episode, and the connection that it keeps while there is one: a server may remember."""

    spec: EpisodeSpec
    server: _Server | None = None
    link: ServerConnection | None = None
    answered: bool = False
    """Whether its server has answered, and may remember something."""


@dataclass(frozen=True)
class ServersInfo:
    """What servers say of themselves: those of ours, lines for the user, and names they want."""

    said: list[ServerInfo | None]
    notes: list[str]
    wants: set[str]


class ServerPool:
    """All servers. Its methods may be called by many threads, each with a seat of its own."""

    def __init__(self, addresses: Sequence[Address], dial: Connector, retry_s: float) -> None:
        self._servers = [_Server(address) for address in addresses]
        self._dial = dial
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._links: set[ServerConnection] = set()
        self._met: list[ServerInfo | None] = []

    def meet(self) -> ServersInfo:
        """Return what every server that answers says of itself, and what is to be noted of others.

        Raises:
            UsageError: none answers, or one speaks something else.
        """
        said: list[ServerInfo | None] = []
        missing: list[str] = []
        wants: set[str] = set()
        for server in self._servers:
            try:
                link = self._connect(server)
            except ConnectionLost as lost:
                self._note_loss(server)
                missing.append(str(lost))
            except ProtocolError as error:
                self.close()
                raise UsageError(f"--policy.url={server.address}: {error}") from None
            else:
                said.append(link.about)
                wants.update(link.wants)
                server.idle.append(link)
        if not said:
            raise UsageError(f"--policy.url: no server answers: {'; '.join(missing)}")
        words = {server.word for server in self._servers if server.word is not None}
        if said[0] is None and len(words) > 1:
            missing.append("the servers say different things of themselves: the same policy?")
        self._met = said
        return ServersInfo(said, missing, wants)

    def ask(self, episode_connection: EpisodeConnection, ask: InferenceRequest) -> Array:
        """Return the answer of whichever server can give it.

        Raises:
            PeerLost: none could for ``retry_s``.
            EpisodeLost: the one that knows the episode is gone.
            WireError: what came is no answer, or from another policy.
        """
        give_up_at, pause_s = 0.0, _PAUSE_S
        while True:
            try:
                return self._ask_once(episode_connection, ask)
            except ConnectionLost:
                now = time.monotonic()
                give_up_at = give_up_at or now + self._retry_s
                if now >= give_up_at or self._closed.is_set():
                    raise
            if self._all_down():
                self._closed.wait(min(pause_s, max(0.0, give_up_at - time.monotonic())))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def end(self, episode_connection: EpisodeConnection) -> None:
        """Give the episode's connection back."""
        link, server = episode_connection.link, episode_connection.server
        episode_connection.link = episode_connection.server = None
        if link is None or server is None:
            return
        try:
            link.end()
        except ProtocolError:
            self._drop(server, link)
            return
        with self._lock:
            server.seats -= 1
            server.idle.append(link)

    def close(self) -> None:
        """Hang up everywhere; whoever waits for an answer waits no more."""
        self._closed.set()
        with self._lock:
            links, self._links = list(self._links), set()
        for link in links:
            link.close()

    def _ask_once(self, episode_connection: EpisodeConnection, ask: InferenceRequest) -> Array:
        if episode_connection.link is None:
            self._sit_down(episode_connection)
        server, link = episode_connection.server, episode_connection.link
        assert server is not None
        assert link is not None
        began = time.perf_counter()
        try:
            actions = link.ask(ask)
        except ConnectionLost as lost:
            self._leave(episode_connection, server, link)
            self._note_loss(server, lost)
            if episode_connection.answered and link.remembers:
                raise EpisodeStateLost(
                    f"{lost}, with what it remembered of {episode_connection.spec}"
                ) from None
            raise
        except ProtocolError as error:
            self._leave(episode_connection, server, link)
            raise ProtocolError(f"{server.address}: {error}") from None
        took = time.perf_counter() - began
        server.usual_s = took if not server.usual_s else 0.8 * server.usual_s + 0.2 * took
        server.losses, server.not_before = 0, 0.0
        episode_connection.answered = True
        return actions

    def _leave(
        self, episode_connection: EpisodeConnection, server: _Server, link: ServerConnection
    ) -> None:
        episode_connection.link = episode_connection.server = None
        self._drop(server, link)

    def _sit_down(self, episode_connection: EpisodeConnection) -> None:
        """Find the episode a connection: to the server that will answer soonest, if it can."""
        lost: ConnectionLost | None = None
        for server in self._by_load():
            with self._lock:
                server.seats += 1
            link: ServerConnection | None = None
            try:
                link = self._idle_link(server) or self._connect(server)
                link.begin(episode_connection.spec)
            except ProtocolError as error:
                self._drop(server, link)
                if not isinstance(error, ConnectionLost):
                    raise
                lost = error
                self._note_loss(server, error)
                continue
            episode_connection.server, episode_connection.link = server, link
            return
        assert lost is not None
        raise lost

    def _by_load(self) -> list[_Server]:
        """Return the servers that may be tried, the best first; those that are down come last."""
        now = time.monotonic()
        with self._lock:
            return sorted(self._servers, key=lambda server: (server.is_down(now), server.load))

    def _idle_link(self, server: _Server) -> ServerConnection | None:
        with self._lock:
            return server.idle.pop() if server.idle else None

    def _connect(self, server: _Server) -> ServerConnection:
        link = self._dial(server.address)
        with self._lock:
            self._links.add(link)
            closed = self._closed.is_set()
        if closed:
            link.close()
            raise ConnectionLost(f"{server.address} is not asked any more")
        self._recognise(server, link)
        return link

    def _recognise(self, server: _Server, link: ServerConnection) -> None:
        """Refuse a server that is back with another policy, or came late with one."""
        if self._met and link.about != self._met[0]:
            self._hang_up(link)
            named = " and ".join(served_policy_name(about) for about in (link.about, self._met[0]))
            raise ProtocolError(
                f"{server.address}: not the policy that the run began with ({named})"
            )
        if server.word not in (None, link.word) and link.about is None:
            print(
                f"warning: {server.address} says other things of itself than before: the same "
                "policy?",
                file=sys.stderr,
                flush=True,
            )
        server.word = link.word

    def _drop(self, server: _Server, link: ServerConnection | None) -> None:
        with self._lock:
            server.seats -= 1
        if link is not None:
            self._hang_up(link)

    def _hang_up(self, link: ServerConnection) -> None:
        with self._lock:
            self._links.discard(link)
        with contextlib.suppress(ProtocolError):
            link.close()

    def _note_loss(self, server: _Server, lost: ConnectionLost | None = None) -> None:
        """Try a server later; connections that were open to it are of no use."""
        with self._lock:
            now = time.monotonic()
            news = lost is not None and now >= server.said_at + _NEWS_S and server.losses == 0
            server.said_at = now if news else server.said_at
            server.losses += 1
            pause_s = min(_PAUSE_S * 2**server.losses, _LONGEST_PAUSE_S)
            server.not_before = time.monotonic() + pause_s
            idle, server.idle = server.idle, []
            self._links.difference_update(idle)
        for link in idle:
            link.close()
        if news and not self._closed.is_set():
            print(
                strip_control_codes(f"warning: {lost}; asking again"), file=sys.stderr, flush=True
            )

    def _all_down(self) -> bool:
        now = time.monotonic()
        return all(server.not_before > now for server in self._servers)


def served_policy_name(about: ServerInfo | None) -> str:
    """Return how a policy is called where it must be told from others."""
    return "somebody else's" if about is None else f"{about.policy} {about.fingerprint[:8]}"
