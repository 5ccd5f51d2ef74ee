"""The two ports of ``proctor robot-host``: one operator, and bounded work in each cycle."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator

from proctor.config.robot_host import HostSettings
from proctor.errors import ProtocolError, UsageError
from proctor.protocols.zmtp.peer import MessageLimits, Refusal, Refused, Role, ZmtpPeer
from proctor.protocols.zmtp.socket import ZmtpSocket
from proctor.robots.host_key import read_host_key
from proctor.system.limits import CycleLimits

MOST_ACTION_BYTES = 2**16
_MOST_PENDING = 64
"""Connections that have not finished their handshake; a newer one replaces the oldest."""
_OPEN_S = 2.0
"""Longest time of a handshake in seconds."""
_CYCLE = CycleLimits(messages=256, seconds=0.005)


class _Connection(ZmtpSocket):
    """A client's connection."""

    def __init__(self, made: socket.socket, address: str, peer: ZmtpPeer) -> None:
        super().__init__(made, peer)
        self.address = address
        self.until = time.monotonic() + _OPEN_S


class _Port:
    """A listening port, its unfinished handshakes, and its operator."""

    def __init__(self, listener: socket.socket, make_peer: Callable[[], ZmtpPeer]) -> None:
        self._listener, self._make_peer = listener, make_peer
        self.number = int(listener.getsockname()[1])
        self._pending: deque[_Connection] = deque()
        self.operator: _Connection | None = None

    def accept(self) -> None:
        """Accept the connections that wait."""
        for _ in range(_MOST_PENDING):
            try:
                made, address = self._listener.accept()
            except OSError:  # none waits, it is gone already, or descriptors are short
                return
            if len(self._pending) == _MOST_PENDING:
                self._pending.popleft().close()
            self._pending.append(_Connection(made, address[0], self._make_peer()))

    def finished_handshakes(self, note: Callable[[Refusal], None]) -> Iterator[_Connection]:
        """Yield clients that have done their part of the handshake."""
        for one in [self._pending.popleft() for _ in range(len(self._pending))]:
            try:
                one.advance()
            except Refused as refused:
                note(refused.reason)
                one.refuse(refused.reason)
                continue
            except ProtocolError:  # also ConnectionLost
                one.close()
                continue
            if one.peer.waits_for_admission:
                yield one
            elif time.monotonic() > one.until:
                one.close()
            else:
                self._pending.append(one)

    def messages(self) -> list[list[bytes]]:
        """Return the operator's messages; an operator that breaks the protocol is disconnected."""
        received: list[list[bytes]] = []
        if self.operator is not None:
            try:
                received.extend(self.operator.messages(_CYCLE))
            except ProtocolError:
                self.disconnect()
        return received

    def disconnect(self) -> None:
        """Close the operator's connection."""
        if self.operator is not None:
            self.operator.close()
            self.operator = None

    def close(self) -> None:
        """Close all connections and the port."""
        self.disconnect()
        while self._pending:
            self._pending.pop().close()
        self._listener.close()


class HostPorts:
    """The ports of a host, closed at the end of a ``with`` block.

    The operator is the first client of each port; both come from one address. No call waits.
    """

    def __init__(self, settings: HostSettings, note: Callable[[str], None]) -> None:
        """Listen."""
        self._note, self._noted = note, set[Refusal]()
        file = settings.key_file
        key = None if file is None else read_host_key(file, "--host.key_file")
        limits = MessageLimits(1, MOST_ACTION_BYTES)

        def listen(port: int, socket_type: str) -> _Port:
            made = _listener(settings.address, port)
            return _Port(made, lambda: ZmtpPeer(Role.SERVER, socket_type, limits, key))

        with contextlib.ExitStack() as undo:
            self._actions = listen(settings.port_zmq_cmd, "PULL")
            undo.callback(self._actions.close)
            self._observations = listen(settings.port_zmq_observations, "PUSH")
            undo.pop_all()
        self.command_port, self.observation_port = self._actions.number, self._observations.number

    def __enter__(self) -> HostPorts:
        return self

    def __exit__(self, *_: object) -> None:
        self._actions.close()
        self._observations.close()

    def receive_actions(self) -> list[list[bytes]]:
        """Return the operator's messages, the newest one last, as many as a cycle allows."""
        messages = self._actions.messages()
        self._observations.messages()  # heartbeats, and whether it is closed
        ports = (self._actions, self._observations)
        for port in ports:
            port.accept()
            for one in port.finished_handshakes(self._note_refusal):
                operators = [p.operator for p in ports if p.operator is not None]
                if port.operator is None and all(o.address == one.address for o in operators):
                    one.peer.admit()
                    port.operator = one
                else:
                    self._note_refusal(Refusal.BUSY)
                    one.refuse(Refusal.BUSY)
        return messages

    def _note_refusal(self, reason: Refusal) -> None:
        if reason not in self._noted:
            self._noted.add(reason)
            self._note(_REFUSALS.get(reason, "a client of another protocol was refused"))

    @property
    def wants_observation(self) -> bool:
        """Whether there is an operator who has received the last observation."""
        operator = self._observations.operator
        return operator is not None and not operator.peer.outgoing

    def send_observation(self, parts: list[bytes]) -> None:
        """Send an observation to the operator; what the network does not take yet waits."""
        operator = self._observations.operator
        assert operator is not None
        operator.peer.send(parts)
        try:
            operator.flush()
        except ProtocolError:
            self._observations.disconnect()


_REFUSALS = {
    Refusal.BUSY: "a second operator was refused: another one is connected",
    Refusal.WRONG_KEY: "a client with another key was refused",
    Refusal.NEEDS_KEY: "a client without the key was refused",
    Refusal.HAS_NO_KEY: "a client with a key was refused: this host has none (--host.key_file)",
}


def _listener(address: str, port: int) -> socket.socket:
    """Return a listening socket that never waits."""
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(2 * _MOST_PENDING)
    except OSError as error:
        made.close()
        raise UsageError(
            f"cannot serve on {address}:{port}: {error.strerror}; choose another --host.address or "
            "port",
            code="robot.host-address",
        ) from None
    made.setblocking(False)
    return made
