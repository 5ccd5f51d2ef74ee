"""What clients have begun to send: bytes, time and places, over all connections of a service.

A ``Sender`` is a connection or a call. It is cut when it pauses for too long, and when another one
needs its place or its memory: first one that has sent no valid message yet, then the one that was
silent for longest. A sender whose message is being answered is never cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from proctor.system.limits import ByteBudget, ServerLimits

_SWEEP_S = 0.5
CALLS_OF_PEER = 4
"""Most calls of one connection. A robot has two: it sends observations and requests actions."""
_FIRST_S = 0.1
"""Shortest wait for a first message after which another client may get the place."""
_PAUSE_S = 1.0
"""Shortest pause in a message after which another sender may get its memory."""


class Sender:
    """A connection or a call, and what it has sent of its next message."""

    def __init__(
        self, pool: Senders, cut: Callable[[], None], peer: str | None, silence_s: float
    ) -> None:
        self._pool, self.cut, self.peer = pool, cut, peer
        self.silence_s = silence_s
        """Longest wait for the next message."""
        self.is_proven = False
        """Whether a valid message came."""
        self.held = 0
        self.waits_since: float | None = None
        """The time of the last byte, while the service waits for the next one."""
        self.began_at = 0.0
        """The time of the first byte of the unfinished message."""

    def wait(self) -> None:
        """Note that the service waits for the sender's next bytes."""
        self.waits_since = self._pool.now()

    def work(self, *, proven: bool = False) -> None:
        """Note that the service works on a message; ``proven``: it was valid."""
        self.waits_since = None
        if proven and not self.is_proven:
            self._pool.prove(self)

    def hold(self, total: int) -> bool:
        """Note how many bytes the unfinished message has; return False without room for them."""
        if self.waits_since is not None:
            self.waits_since = self._pool.now()
        return total == self.held or self._pool.hold(self, total)

    def close(self) -> None:
        """Give place and memory back."""
        self._pool.close_sender(self)

    def due(self, limits: ServerLimits) -> float:
        """Return when the sender has paused for too long."""
        if self.waits_since is None:
            return math.inf
        if self.held:
            return min(self.waits_since + limits.open_s, self.began_at + limits.message_s)
        return self.waits_since + self.silence_s


class Senders:
    """All senders of a service; thread-safe."""

    def __init__(
        self,
        limits: ServerLimits,
        most: int,
        most_bytes: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._most, self.now = limits, most, now
        self._bytes = ByteBudget(most_bytes)
        self._open: dict[Sender, None] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._sweeper: threading.Thread | None = None

    def open(
        self, cut: Callable[[], None], peer: str | None = None, first_s: float | None = None
    ) -> Sender | None:
        """Return a new sender; None if its connection has too many, or all others are served.

        ``cut`` ends it, from any thread. ``peer`` names the connection of a call, ``first_s`` is
        the longest wait for its first message.
        """
        sender = Sender(self, cut, peer, self._limits.idle_s if first_s is None else first_s)
        with self._lock:
            siblings = self._siblings(sender)
            if len(siblings) >= CALLS_OF_PEER:
                return None
            if len(self._open) >= self._most and not self._cut_silent(0.0):
                return None
            sender.is_proven = any(one.is_proven for one in siblings)
            self._open[sender] = None
            if self._sweeper is None:
                self._sweeper = threading.Thread(
                    target=self._sweep_often, name="proctor-senders", daemon=True
                )
                self._sweeper.start()
        return sender

    def make_room(self) -> bool:
        """Cut the connection that was silent for longest without a message; False if none was."""
        with self._lock:
            return self._cut_silent(_FIRST_S, proven=False)

    def prove(self, sender: Sender) -> None:
        """Note that the connection of a sender has sent a valid message."""
        with self._lock:
            for one in (sender, *self._siblings(sender)):
                one.is_proven = True
                one.silence_s = max(one.silence_s, self._limits.idle_s)

    def _siblings(self, sender: Sender) -> list[Sender]:
        """Return the open calls of the same connection."""
        if sender.peer is None:
            return []
        return [one for one in self._open if one.peer == sender.peer and one is not sender]

    def hold(self, sender: Sender, total: int) -> bool:
        """Count a sender's bytes; cut another one if that makes room."""
        with self._lock:
            if sender not in self._open:
                return False
            self._bytes.give_back(sender.held)
            if not sender.held:
                sender.began_at = self.now()
            sender.held = 0
            while not self._bytes.take(total):
                if not (
                    self._cut_silent(_PAUSE_S, holding=True, but=sender) or self._cut_larger(total)
                ):
                    return False
            sender.held = total
            return True

    def close_sender(self, sender: Sender) -> None:
        """Remove a sender."""
        with self._lock:
            self._remove(sender)

    def close(self) -> None:
        """Stop looking for senders that pause."""
        self._stopping.set()

    def sweep(self) -> None:
        """Cut the senders that have paused for too long."""
        with self._lock:
            now = self.now()
            for sender in [one for one in self._open if one.due(self._limits) <= now]:
                self._cut(sender)

    def _sweep_often(self) -> None:
        while not self._stopping.wait(min(_SWEEP_S, self._limits.idle_s / 4)):
            self.sweep()

    def _cut_silent(
        self,
        pause_s: float,
        *,
        holding: bool = False,
        proven: bool = True,
        but: Sender | None = None,
    ) -> bool:
        """Cut the sender that has paused for longest; return False if none may be cut."""
        now = self.now()
        best: tuple[tuple[bool, float], Sender] | None = None
        for one in self._open:
            since = one.waits_since
            if since is None or one is but or (holding and not one.held):
                continue
            if one.is_proven and not proven:
                continue
            began = min(since, one.began_at) if one.held else since
            shortest = self._limits.open_s if one.is_proven else pause_s
            if now - since >= shortest or (one.held and now - began >= self._limits.open_s):
                rank = (one.is_proven, since)
                if best is None or rank < best[0]:
                    best = rank, one
        if best is None:
            return False
        self._cut(best[1])
        return True

    def _cut_larger(self, total: int) -> bool:
        """Cut the largest unfinished first message that is larger; return False without any."""
        larger = [
            one
            for one in self._open
            if one.held > total and not one.is_proven and one.waits_since is not None
        ]
        if larger:
            self._cut(max(larger, key=lambda one: one.held))
        return bool(larger)

    def _cut(self, sender: Sender) -> None:
        self._remove(sender)
        sender.cut()

    def _remove(self, sender: Sender) -> None:
        if sender in self._open:
            del self._open[sender]
            self._bytes.give_back(sender.held)
            sender.held = 0


def aborting(transport: Any) -> Callable[[], None]:
    """Return a function that ends a connection from any thread."""
    loop = asyncio.get_running_loop()

    def cut() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(transport.abort)

    return cut
