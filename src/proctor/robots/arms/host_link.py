"""The two connections of a client to a robot's host: actions out, the newest observation in."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from proctor.errors import ConnectionLost, DeviceNotConnected, ProtocolError
from proctor.protocols.zmtp.peer import MessageLimits, Refusal, Refused, Role, ZmtpPeer
from proctor.protocols.zmtp.socket import ZmtpSocket, connect_peer
from proctor.system.limits import CycleLimits

_CYCLE = CycleLimits(messages=1024, seconds=0.02)
_RETRY_S = 0.05
_MOST_UNSENT_BYTES = 2**14
"""About 60 actions."""
_NO_MESSAGES = MessageLimits(1, 2**16)
"""A host sends nothing to the socket of actions."""
_REASONS = {
    Refusal.BUSY: "another operator drives the robot",
    Refusal.WRONG_KEY: "it has another key; copy --host.key_file from the robot's computer again",
    Refusal.NEEDS_KEY: "it has a key; copy it from there and give --robot.key_file=FILE",
    Refusal.HAS_NO_KEY: "it has no key (LeRobot's hosts cannot have one); leave out "
    "--robot.key_file, or start it with --host.key_file",
}


@dataclass(frozen=True)
class HostAddress:
    """Where a host listens, and the key that both have."""

    ip: str
    action_port: int
    observation_port: int
    key: bytes | None = None

    def __str__(self) -> str:
        return f"tcp://{self.ip}:{self.observation_port}"


class HostLink:
    """Open connections to a host."""

    def __init__(self, address: HostAddress, limits: MessageLimits, within_s: float) -> None:
        """Connect; a host that does not listen yet is tried again."""
        self._address, self._until = address, time.monotonic() + within_s
        self._actions = self._connect(address.action_port, "PUSH", _NO_MESSAGES)
        try:
            self._observations = self._connect(address.observation_port, "PULL", limits)
        except BaseException:
            self._actions.close()
            raise

    def _connect(self, port: int, socket_type: str, limits: MessageLimits) -> ZmtpSocket:
        while True:
            left_s = self._until - time.monotonic()
            peer = ZmtpPeer(Role.CLIENT, socket_type, limits, self._address.key)
            try:
                return connect_peer(self._address.ip, port, peer, left_s)
            except ProtocolError as error:
                if isinstance(error, Refused) and error.reason in _REASONS:
                    raise DeviceNotConnected(
                        f"the robot's host {self._address} refuses this computer: "
                        f"{_REASONS[error.reason]}",
                        code="robot.host-refused",
                    ) from None
                if left_s <= 0:
                    raise DeviceNotConnected(
                        f"no answer from the robot's host {self._address}: {error}; is it running?",
                        code="robot.host-silent",
                    ) from None
                time.sleep(_RETRY_S)

    def receive(self, wait_s: float) -> list[bytes] | None:
        """Return the newest message; wait for one if none has arrived."""
        until = time.monotonic() + wait_s
        newest = None
        try:
            while True:
                for message in self._observations.messages(_CYCLE):
                    newest = message
                left_s = until - time.monotonic()
                if newest is not None or left_s <= 0:
                    return newest
                self._observations.wait(left_s)
        except ProtocolError as error:
            raise self._lost(error) from None

    def send(self, message: bytes) -> bool:
        """Send an action; leave it out and return False while too many wait for the network."""
        try:
            for _ in self._actions.messages(CycleLimits(messages=16, seconds=0.001)):
                pass  # heartbeats, and whether the host is gone
            if len(self._actions.peer.outgoing) > _MOST_UNSENT_BYTES:
                return False
            self._actions.peer.send([message])
            self._actions.flush()
        except ProtocolError as error:
            raise self._lost(error) from None
        return True

    def _lost(self, error: ProtocolError) -> DeviceNotConnected:
        return DeviceNotConnected(
            f"the connection to the robot's host {self._address} is lost: {error}",
            code="robot.host-lost",
        )

    def close(self, linger_s: float) -> None:
        """Close the connections after the last action was sent, or the time is over."""
        until = time.monotonic() + linger_s
        with contextlib.suppress(ConnectionLost):
            while not self._actions.flush() and (left_s := until - time.monotonic()) > 0:
                self._actions.wait(left_s)
        self._actions.close()
        self._observations.close()
