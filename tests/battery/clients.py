"""The table of clients, and the wrong peers that they meet."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proctor.policies.remote.address import parse_addresses
from proctor.policies.remote.connection import ConnectionSettings, ServerConnection
from proctor.protocols.zmtp import frames as zmtp
from proctor.rl.learner.channel import ChannelLost, LearnerAddress, LearnerChannel
from proctor.robots.arms.lekiwi_client import LekiwiClient, LekiwiClientConfig
from proctor.robots.base import RealClock
from proctor.robots.cameras.zmq import ZMQCameraConfig, make_camera


@dataclass(frozen=True)
class Client:
    """A client of a server that may be hostile."""

    modules: tuple[str, ...]
    """Modules of ``src`` that read the peer's bytes for it."""
    use: Callable[[int], Any]
    """Connects to a port and asks once; must raise an error of ours in ``LIMIT_S``."""


LIMIT_S = 15.0
_SETTINGS = ConnectionSettings(connect_s=1.0, answer_s=1.0, most_bytes=2**20)


def connection_to(
    port: int, module: str, name: str, scheme: str, settings: ConnectionSettings
) -> ServerConnection:
    """Connect to a policy server by one of the protocols."""
    from importlib import import_module

    made = getattr(import_module(f"proctor.policies.remote.{module}"), name)
    connect = made(None) if name == "make_connector" else made
    return connect(parse_addresses(f"{scheme}://127.0.0.1:{port}", None)[0], settings)


def _connection(module: str, name: str, scheme: str) -> Callable[[int], Any]:
    def use(port: int) -> Any:
        return connection_to(port, module, name, scheme, _SETTINGS)

    return use


def _use_learner(port: int) -> None:
    channel = LearnerChannel(LearnerAddress(port=port), "a")
    with contextlib.closing(channel):
        channel.ready()


def _use_lekiwi(port: int) -> None:
    ports = {"port_zmq_cmd": port, "port_zmq_observations": port}
    config = LekiwiClientConfig(remote_ip="127.0.0.1", cameras={}, connect_timeout_s=1.0, **ports)
    LekiwiClient(config).connect()


def _use_camera(port: int) -> None:
    config = ZMQCameraConfig(server_address="127.0.0.1", port=port, timeout_ms=1000)
    make_camera(config, RealClock()).connect()


_REMOTE = "proctor.policies.remote"
CLIENTS = {
    "openpi": Client(
        (f"{_REMOTE}.websocket",),
        _connection("websocket", "OpenpiConnection", "ws"),
    ),
    "vla-eval": Client(
        (f"{_REMOTE}.websocket",),
        _connection("websocket", "VlaEvalConnection", "vla"),
    ),
    "groot": Client((f"{_REMOTE}.groot",), _connection("groot", "GrootConnection", "tcp")),
    "lerobot": Client((f"{_REMOTE}.lerobot",), _connection("lerobot", "make_connector", "grpc")),
    "actor": Client(("proctor.rl.learner.channel", "proctor.rl.link.payloads"), _use_learner),
    "lekiwi_client": Client(
        (
            "proctor.robots.arms.lekiwi_client",
            "proctor.robots.arms.host_link",
            "proctor.protocols.zmtp.socket",
        ),
        _use_lekiwi,
    ),
    "zmq camera": Client(
        ("proctor.robots.cameras.zmq", "proctor.robots.cameras.peer_images"), _use_camera
    ),
}
OURS = (ChannelLost,)
"""Errors beside ProctorError that a client handles itself."""

_UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


def says_nothing(line: socket.socket) -> None:
    while line.recv(2**16):
        pass


def ends_at_once(line: socket.socket) -> None:
    line.close()


def answers_for_ever(line: socket.socket) -> None:
    chance = random.Random(0)
    while True:
        line.sendall(chance.randbytes(2**16))


def sends_endless_headers(line: socket.socket) -> None:
    line.sendall(_UPGRADE)
    while True:
        line.sendall(b"X: y\r\n" * 1000)


def announces_a_huge_message(line: socket.socket) -> None:
    """Greet as each protocol does, then announce 2^60 bytes."""
    first = line.recv(2**16)
    if first.startswith(b"GET"):
        import base64
        import hashlib

        key = next(x for x in first.split(b"\r\n") if x.lower().startswith(b"sec-websocket-key"))
        accept = key.split(b": ")[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        token = base64.b64encode(hashlib.sha1(accept, usedforsecurity=False).digest())
        line.sendall(_UPGRADE + b"Sec-WebSocket-Accept: " + token + b"\r\n\r\n\x82\x7f")
    elif first.startswith(b"PRI"):
        line.sendall(bytes(9) + b"\xff\xff\xff\0\0\0\0\0\1")
    else:
        line.sendall(zmtp.GREETING + zmtp.ready_command() + b"\x02")
    line.sendall(struct.pack(">Q", 2**60))
    while True:
        line.sendall(bytes(2**16))


PEERS = (
    says_nothing,
    ends_at_once,
    answers_for_ever,
    sends_endless_headers,
    announces_a_huge_message,
)
