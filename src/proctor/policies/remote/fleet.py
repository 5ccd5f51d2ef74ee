"""Several servers of one policy: a slow one holds up nobody else, a lost one's work goes on."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from proctor.errors import PeerLost, UsageError, WireError, one_line
from proctor.features import Array
from proctor.policies.remote.address import Address
from proctor.policies.remote.link import Dial, Link
from proctor.types import EpisodeSpec
from proctor.wire.records import About, Ask

_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


@dataclass(eq=False)
class _Server:
    address: Address
    idle: list[Link] = field(default_factory=list)
    seats: int = 0
    """Episodes that are with it."""
    usual_s: float = 0.0
    """What an answer takes, lately."""
    losses: int = 0
    """In a row."""
    not_before: float = 0.0
    """When it may be tried again."""

    @property
    def load(self) -> float:
        """About how long one more episode waits here."""
        return (self.seats + 1) * (self.usual_s or 1e-3)


@dataclass(eq=False)
class Seat:
    """An episode, and the connection that it keeps while there is one: a server may remember."""

    spec: EpisodeSpec
    server: _Server | None = None
    link: Link | None = None


class Fleet:
    """All servers. Its methods may be called by many threads, each with a seat of its own."""

    def __init__(self, addresses: Sequence[Address], dial: Dial, retry_s: float) -> None:
        self._servers = [_Server(address) for address in addresses]
        self._dial = dial
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._links: set[Link] = set()

    def meet(self) -> tuple[list[About | None], list[str]]:
        """Return what every server that answers says of itself, and why others do not.

        Raises:
            UsageError: none answers, or one speaks something else.
        """
        said, missing = [], []
        for server in self._servers:
            try:
                link = self._connect(server)
            except PeerLost as lost:
                self._note_loss(server)
                missing.append(str(lost))
            except WireError as error:
                self.close()
                raise UsageError(f"--policy.url={server.address}: {error}") from None
            else:
                said.append(link.about)
                server.idle.append(link)
        if not said:
            raise UsageError(f"--policy.url: no server answers: {'; '.join(missing)}")
        return said, missing

    def ask(self, seat: Seat, ask: Ask) -> Array:
        """Return the answer of whichever server can give it.

        Raises:
            PeerLost: none could for ``retry_s``.
            WireError: what came is no answer.
        """
        give_up_at, pause_s = 0.0, _PAUSE_S
        while True:
            try:
                return self._ask_once(seat, ask)
            except PeerLost as lost:
                now = time.monotonic()
                give_up_at = give_up_at or now + self._retry_s
                if now >= give_up_at or self._closed.is_set():
                    raise
                self._say(lost)
            if self._all_down():
                self._closed.wait(min(pause_s, max(0.0, give_up_at - time.monotonic())))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def end(self, seat: Seat) -> None:
        """Give the episode's connection back."""
        link, server = seat.link, seat.server
        seat.link = seat.server = None
        if link is None or server is None:
            return
        try:
            link.end()
        except WireError:
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

    def _ask_once(self, seat: Seat, ask: Ask) -> Array:
        if seat.link is None:
            self._sit_down(seat)
        server, link = seat.server, seat.link
        assert server is not None
        assert link is not None
        began = time.perf_counter()
        try:
            actions = link.ask(ask)
        except WireError as error:
            seat.link = seat.server = None
            self._drop(server, link)
            if isinstance(error, PeerLost):
                self._note_loss(server)
                raise
            raise WireError(f"{server.address}: {error}") from None
        took = time.perf_counter() - began
        server.usual_s = took if not server.usual_s else 0.8 * server.usual_s + 0.2 * took
        server.losses, server.not_before = 0, 0.0
        return actions

    def _sit_down(self, seat: Seat) -> None:
        """Find the episode a connection: to the server that will answer soonest, if it can."""
        lost: PeerLost | None = None
        for server in self._by_load():
            try:
                link = self._idle_link(server) or self._connect(server)
                link.begin(seat.spec)
            except PeerLost as error:
                lost = error
                self._note_loss(server)
                continue
            with self._lock:
                server.seats += 1
            seat.server, seat.link = server, link
            return
        assert lost is not None
        raise lost

    def _by_load(self) -> list[_Server]:
        """Return the servers that may be tried, the best first; those that are down come last."""
        now = time.monotonic()
        with self._lock:
            return sorted(self._servers, key=lambda s: (s.not_before > now, s.load))

    def _idle_link(self, server: _Server) -> Link | None:
        with self._lock:
            return server.idle.pop() if server.idle else None

    def _connect(self, server: _Server) -> Link:
        link = self._dial(server.address)
        with self._lock:
            self._links.add(link)
            closed = self._closed.is_set()
        if closed:
            link.close()
            raise PeerLost(f"{server.address} is not asked any more")
        return link

    def _drop(self, server: _Server, link: Link) -> None:
        with self._lock:
            server.seats -= 1
            self._links.discard(link)
        with contextlib.suppress(WireError):
            link.close()

    def _note_loss(self, server: _Server) -> None:
        """Try a server later; connections that were open to it are of no use."""
        with self._lock:
            server.losses += 1
            pause_s = min(_PAUSE_S * 2**server.losses, _LONGEST_PAUSE_S)
            server.not_before = time.monotonic() + pause_s
            idle, server.idle = server.idle, []
            self._links.difference_update(idle)
        for link in idle:
            link.close()

    def _all_down(self) -> bool:
        now = time.monotonic()
        return all(server.not_before > now for server in self._servers)

    def _say(self, lost: PeerLost) -> None:
        """Say once a server that it is lost, while others, or it, are tried."""
        down = [server for server in self._servers if server.losses == 1]
        if down:
            print(one_line(f"warning: {lost}; asking again"), file=sys.stderr, flush=True)
