"""A TCP connection of a ``ZmtpPeer`` that never waits, for control loops."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from collections.abc import Iterator

from proctor.errors import ConnectionLost
from proctor.protocols.zmtp.peer import Refusal, ZmtpPeer
from proctor.system.limits import CycleLimits

_PIECE = 2**16
_LOST_AFTER_S = 4
"""Time in seconds after which a connection without a network is closed."""


class ZmtpSocket:
    """A connected socket and its side of the protocol."""

    def __init__(self, made: socket.socket, peer: ZmtpPeer) -> None:
        self._socket, self.peer = made, peer
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", 1),
            ("TCP_KEEPINTVL", 1),
            ("TCP_KEEPCNT", _LOST_AFTER_S - 1),
            ("TCP_USER_TIMEOUT", 1000 * _LOST_AFTER_S),
        ):
            if hasattr(socket, option):  # Linux
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def wait(self, seconds: float) -> None:
        """Wait until there is something to read, or room for what is unsent."""
        ready = select.poll()
        ready.register(self._socket, select.POLLIN | select.POLLOUT * bool(self.peer.outgoing))
        ready.poll(math.ceil(1000 * max(seconds, 0)))

    def advance(self) -> bool:
        """Go on with the handshake as far as possible; return whether it waits for the peer."""
        while True:
            self.peer.next_message()  # none before the handshake is complete
            self.flush()
            if self.peer.is_open or self.peer.waits_for_admission:
                return False
            if not self._receive():
                return True

    def messages(self, limits: CycleLimits) -> Iterator[list[bytes]]:
        """Yield the messages that have arrived, within the limits."""
        for _ in limits.turns():
            message = self.peer.next_message()
            if message is not None:
                yield message
            elif not self._receive():
                break
        self.flush()

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(_PIECE)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionLost(f"the connection is lost: {error.strerror}") from None
        if not data:
            raise ConnectionLost("the peer closed the connection")
        self.peer.feed(data)
        return True

    def flush(self) -> bool:
        """Send what the network takes; return whether that is all."""
        unsent = self.peer.outgoing
        while unsent:
            try:
                del unsent[: self._socket.send(unsent)]
            except BlockingIOError:
                return False
            except OSError as error:
                raise ConnectionLost(f"the connection is lost: {error.strerror}") from None
        return True

    def refuse(self, reason: Refusal) -> None:
        """Tell the peer why it is refused, and close the connection."""
        self.peer.refuse(reason)
        with contextlib.suppress(ConnectionLost):
            self.flush()
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def connect_peer(host: str, port: int, peer: ZmtpPeer, within_s: float) -> ZmtpSocket:
    """Connect to a listening peer and complete the handshake."""
    until = time.monotonic() + within_s
    try:
        line = ZmtpSocket(socket.create_connection((host, port), max(within_s, 0.01)), peer)
    except OSError as error:
        raise ConnectionLost(error.strerror or "it does not answer in time") from None
    try:
        while line.advance():
            if time.monotonic() > until:
                raise ConnectionLost("it does not finish the handshake in time")
            line.wait(until - time.monotonic())
    except BaseException:
        line.close()
        raise
    return line
