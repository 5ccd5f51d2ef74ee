"""The table of services: how a good client is served, and how messages of any content are sent.

A new service needs an entry in ``SERVICES`` and a process in ``child.CHILDREN``.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen

import grpc
import msgspec
import numpy as np
import zmq
from websockets.sync.client import ClientConnection, connect

from proctor.features import STATE
from proctor.policies.remote.connection import ConnectionSettings
from proctor.protocols import actor_learner, lerobot
from proctor.protocols.formats.protobuf import encode_chunks
from proctor.protocols.formats.torch_archive import save_archive
from proctor.protocols.inference_messages import InferenceRequest
from proctor.protocols.pickle.writer import dump
from proctor.protocols.zmtp import frames as zmtp
from proctor.protocols.zmtp.peer import KEYED, MessageLimits, Role, ZmtpPeer
from proctor.protocols.zmtp.socket import ZmtpSocket
from proctor.rl.link.payloads import encode_transitions
from proctor.system.limits import CycleLimits
from tests.battery import child
from tests.battery.clients import connection_to
from tests.fuzz.frames import groot_samples, lerobot_samples
from tests.unit.rl.builders import transition

HOST = "127.0.0.1"
ANSWER_S = 30.0
MIB = 2**20


@dataclass(frozen=True)
class Service:
    """One endpoint of a child process."""

    child: str
    modules: tuple[str, ...]
    """Modules of ``src`` that listen for it or decode its peers' messages."""
    good: Callable[[int], None]
    """Acts as a good client; raises if it is not served."""
    send: Callable[[int, bytes], None]
    """Sends one message of any content, and takes the reply or the refusal."""
    silent: Callable[[int], Any]
    """Opens a connection or call that has finished its handshake, and says nothing."""
    unfinished: Callable[[int, int], Any]
    """Begins a message of so many bytes, and never ends it."""
    hostile: Callable[[], Sequence[bytes]]
    """Well-formed messages with absurd content."""


# Robots that ask a policy for actions, by each protocol.

_PATIENCE = ConnectionSettings(connect_s=5.0, answer_s=5.0)


def _good_robot(module: str, name: str, scheme: str) -> Callable[[int], None]:
    def good(port: int) -> None:
        with contextlib.closing(connection_to(port, module, name, scheme, _PATIENCE)) as line:
            actions = line.infer(InferenceRequest({STATE: np.zeros(2, np.float32)}, "go"))
            assert actions.shape[-1] == 2

    return good


# WebSockets: openpi and vla-eval.


def websocket(port: int) -> ClientConnection:
    return connect(
        f"ws://{HOST}:{port}", compression=None, max_size=None, open_timeout=ANSWER_S, proxy=None
    )


def _ask_websocket(port: int, message: bytes) -> None:
    with websocket(port) as line:
        line.send(message)
        with contextlib.suppress(TimeoutError):
            line.recv(timeout=1.0)


def _unfinished_websocket(port: int, size: int) -> Any:
    line = websocket(port)
    head = b"\x82\xff" + struct.pack(">Q", size) + bytes(4)
    with contextlib.suppress(OSError):
        line.socket.sendall(head + bytes(size - 1))
    return line


# ZeroMQ: GR00T.


def _ask_zmq(port: int, message: bytes) -> None:
    with zmq.Context() as context, context.socket(zmq.REQ) as line:
        line.setsockopt(zmq.LINGER, 0)
        line.connect(f"tcp://{HOST}:{port}")
        line.send(message)
        line.poll(1000)


def _silent_zmq(port: int) -> socket.socket:
    line = socket.create_connection((HOST, port), ANSWER_S)
    line.sendall(zmtp.GREETING + zmtp.ready_command())
    return line


def _unfinished_zmq(port: int, size: int) -> socket.socket:
    line = _silent_zmq(port)
    with contextlib.suppress(OSError):
        line.sendall(b"\x01\0" + b"\x02" + struct.pack(">Q", size) + bytes(size - 1))
    return line


# gRPC: LeRobot's clients and actors.


def channel(port: int) -> grpc.Channel:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    return grpc.insecure_channel(f"{HOST}:{port}", options)


def _ask_grpc(path: str) -> Callable[[int, bytes], None]:
    def ask(port: int, message: bytes) -> None:
        with channel(port) as line, contextlib.suppress(grpc.RpcError):
            line.stream_unary(path)(encode_chunks(message), timeout=ANSWER_S)

    return ask


def _good_grpc(path: str, frames: Callable[[], list[bytes]]) -> Callable[[int], None]:
    def good(port: int) -> None:
        with channel(port) as line:
            line.stream_unary(path)(iter(frames()), timeout=ANSWER_S, wait_for_ready=True)

    return good


class _Held:
    """A call whose sender waits."""

    def __init__(self, port: int, path: str, *messages: bytes) -> None:
        import threading

        self._ended = threading.Event()
        self._channel = channel(port)

        def sent() -> Iterator[bytes]:
            yield from messages
            self._ended.wait()

        self.call = self._channel.stream_unary(path).future(sent())

    def close(self) -> None:
        self._ended.set()
        self._channel.close()


def _unfinished_grpc(path: str) -> Callable[[int, int], _Held]:
    def begin(port: int, size: int) -> _Held:
        return _Held(port, path, *list(encode_chunks(bytes(size)))[:-1])

    return begin


# HTTP: view.


def _good_http(port: int) -> None:
    with urlopen(f"http://{HOST}:{port}/", timeout=ANSWER_S) as answer:
        assert answer.status == 200


def _ask_http(port: int, message: bytes) -> None:
    with socket.create_connection((HOST, port), ANSWER_S) as line, contextlib.suppress(OSError):
        line.settimeout(1.0)
        line.sendall(message)
        line.recv(MIB)


def _unfinished_http(port: int, size: int) -> socket.socket:
    line = socket.create_connection((HOST, port), ANSWER_S)
    head = f"POST /edit HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Length: {size}\r\n\r\n".encode()
    with contextlib.suppress(OSError):
        line.sendall(head + bytes(size - 1))
    return line


# Absurd content.


def _png(width: int, height: int) -> bytes:
    """Return a PNG whose header announces any size."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(MIB)))
        + chunk(b"IEND", b"")
    )


def _floats(value: float) -> dict[str, Any]:
    data = np.full(3, value, np.float32).tobytes()
    return {
        "__ndarray__": True,
        "nd": True,
        "dtype": "<f4",
        "type": "<f4",
        "shape": [3],
        "data": data,
    }


def _absurd(wrap: Callable[[Any], bytes]) -> list[bytes]:
    """Return messages with absurd values where a protocol expects numbers, arrays and images."""
    image = {"__image__": True, "format": "png", "shape": [20_000, 20_000, 3]}
    huge = {"__ndarray__": True, "nd": True, "dtype": "|u1", "type": "|u1", "data": b"x"}
    values = [
        *(_floats(value) for value in (np.nan, np.inf, -np.inf, 3e38)),
        "9" * 400,
        {"shape": [10**18] * 3, **huge},
        {**huge, "shape": [20_000, 20_000, 3]},
        {**image, "data": _png(20_000, 20_000)},
        {"a" * 10_000: 1},
    ]
    deep: Any = 1
    for _ in range(1500):
        deep = [deep]
    return [wrap(value) for value in values] + [b"\x91" * 10_000 + b"\xc0", b"\xdd\xff\xff\xff\xff"]


def _openpi_absurd() -> list[bytes]:
    return _absurd(
        lambda v: msgspec.msgpack.encode({"observation/image": v, "observation/state": v})
    )


def _vla_eval_absurd() -> list[bytes]:
    def wrap(value: Any) -> bytes:
        payload = {"images": {"a": value}, "state": value}
        message = {"type": "observation", "payload": payload, "seq": 1, "timestamp": 0.0}
        return msgspec.msgpack.encode(message)

    return _absurd(wrap)


def _groot_absurd() -> list[bytes]:
    def wrap(value: Any) -> bytes:
        data = {"observation": {"video.cam": value, "state.arm": value}}
        return msgspec.msgpack.encode({"endpoint": "get_action", "data": data})

    return _absurd(wrap)


def _pickled_absurd() -> list[bytes]:
    deep = b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b"."
    number = b"\x80\x02\x8b" + struct.pack("<I", 10**6) + b"\x7f" * 10**6 + b"."
    numbers = [dump({"timestep": 0, "timestamp": v}) for v in (float("nan"), float("inf"), 1e308)]
    return [deep, number, b"(" * 10_000, *numbers, *lerobot_samples()]


def _transitions_absurd() -> list[bytes]:
    def row(field: str, value: float) -> bytes:
        state = {"observation.state": np.zeros((1, 3), np.float64)}
        made: dict[str, Any] = {
            "state": state,
            "action": np.zeros(2),
            "reward": 0.0,
            "next_state": state,
            "done": False,
            "truncated": False,
            "complementary_info": {"discrete_penalty": np.zeros(1)},
        }
        if field in ("state", "next_state"):
            made[field] = {"observation.state": np.full((1, 3), value)}
        elif field == "action":
            made[field] = np.full(2, value)
        elif field == "complementary_info":
            made[field] = {"discrete_penalty": np.full(1, value)}
        else:
            made[field] = value
        return save_archive([made])

    fields = ("state", "next_state", "action", "reward", "done", "complementary_info")
    values = (float("nan"), float("inf"), 1e39, -1e308)
    return [*(row(f, v) for f in fields for v in values), *_pickled_absurd()[:3]]


def _http_absurd() -> list[bytes]:
    host = b"Host: 127.0.0.1\r\n"
    return [
        b"GET /" + b"a/" * 30_000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        b"GET /?" + b"a=1&" * 10_000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"X: y\r\n" * 5000 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"Range: bytes=" + b"9" * 400 + b"-\r\n\r\n",
        b"POST /edit HTTP/1.1\r\n" + host + b"Content-Length: " + b"9" * 400 + b"\r\n\r\n",
        b"POST /edit HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n" + b"[" * 10_000,
        b"GET /%00%ff/../../etc/passwd HTTP/1.1\r\n" + host + b"\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"Cookie: " + b"a=b;" * 5000 + b"\r\n\r\n",
        json.dumps({"a": 10**400}).encode(),
    ]


# Robots: actions to a host with a key, and its observations.


def _robot_socket(port: int, socket_type: str) -> ZmtpSocket:
    made = socket.create_connection((HOST, port), ANSWER_S)
    line = ZmtpSocket(
        made, ZmtpPeer(Role.CLIENT, socket_type, MessageLimits(8, MIB), child.HOST_KEY)
    )
    deadline = time.monotonic() + ANSWER_S
    while line.advance():
        line.wait(1.0)
        assert time.monotonic() < deadline
    return line


def _send_action(port: int, message: bytes) -> None:
    with contextlib.closing(_robot_socket(port, "PUSH")) as line:
        line.peer.send([message])
        while not line.flush():
            line.wait(1.0)


def _good_receiver(port: int) -> None:
    with contextlib.closing(_robot_socket(port, "PULL")) as line:
        deadline = time.monotonic() + ANSWER_S
        while not any(line.messages(CycleLimits())):
            line.wait(1.0)
            assert time.monotonic() < deadline


def _silent_operator(port: int) -> socket.socket:
    """Greet as an operator does, without a proof of the key."""
    line = socket.create_connection((HOST, port), ANSWER_S)
    line.sendall(zmtp.encode_greeting(KEYED) + zmtp.encode_command(b"\x05HELLO" + bytes(32)))
    return line


def _unfinished_action(port: int, size: int) -> socket.socket:
    line = _silent_operator(port)
    with contextlib.suppress(OSError):
        line.sendall(b"\x02" + struct.pack(">Q", size) + bytes(size - 1))
    return line


def _actions_absurd() -> list[bytes]:
    huge: tuple[Any, ...] = (10**399, float("nan"), float("inf"), 1e300, "1", True, None, [], {})
    names = ("x.vel", "arm_gripper.pos")
    made = [json.dumps({name: value}).encode() for name in names for value in huge]
    return [*made, b"[" * 60_000, b'{"x.vel":' * 6000, b"\xff" * 2**16, bytes(2**20)]


def _transitions() -> list[bytes]:
    payload = encode_transitions([transition(1), transition(2)], for_lerobot=False)
    return list(encode_chunks(payload))


_READY = f"/{lerobot.SERVICE}/{lerobot.READY}"
_OBSERVE = f"/{lerobot.SERVICE}/{lerobot.OBSERVE}"
_STORE = actor_learner.call_path(actor_learner.TRANSITIONS)
_WEBSOCKET = ("proctor.serving.websocket", "proctor.serving.server")
_ROBOT_HOST = (
    "proctor.control.host_ports",
    "proctor.control.robot_host",
    "proctor.protocols.zmtp.peer",
    "proctor.protocols.zmtp.socket",
)

SERVICES = {
    "openpi": Service(
        "serve",
        (*_WEBSOCKET, "proctor.protocols.openpi", "proctor.serving.openpi"),
        _good_robot("websocket", "OpenpiConnection", "ws"),
        _ask_websocket,
        websocket,
        _unfinished_websocket,
        _openpi_absurd,
    ),
    "vla-eval": Service(
        "serve",
        (*_WEBSOCKET, "proctor.protocols.vla_eval", "proctor.serving.vla_eval"),
        _good_robot("websocket", "VlaEvalConnection", "vla"),
        _ask_websocket,
        websocket,
        _unfinished_websocket,
        _vla_eval_absurd,
    ),
    "groot": Service(
        "serve",
        ("proctor.serving.zeromq", "proctor.protocols.groot", "proctor.serving.groot"),
        _good_robot("groot", "GrootConnection", "tcp"),
        _ask_zmq,
        _silent_zmq,
        _unfinished_zmq,
        lambda: [*_groot_absurd(), *groot_samples()],
    ),
    "lerobot": Service(
        "serve",
        ("proctor.serving.lerobot", "proctor.serving.grpc_bridge", "proctor.protocols.lerobot"),
        _good_grpc(_READY, lambda: [b""]),
        _ask_grpc(_OBSERVE),
        lambda port: _Held(port, _OBSERVE),
        _unfinished_grpc(_OBSERVE),
        _pickled_absurd,
    ),
    "learner": Service(
        "learner",
        ("proctor.rl.learner.service", "proctor.rl.link.payloads"),
        _good_grpc(_STORE, _transitions),
        _ask_grpc(_STORE),
        lambda port: _Held(port, _STORE),
        _unfinished_grpc(_STORE),
        _transitions_absurd,
    ),
    "robot-host-actions": Service(
        "robot-host",
        _ROBOT_HOST,
        lambda port: _send_action(port, b'{"arm_gripper.pos": 10}'),
        _send_action,
        _silent_operator,
        _unfinished_action,
        _actions_absurd,
    ),
    "robot-host-observations": Service(
        "robot-host",
        _ROBOT_HOST,
        _good_receiver,
        _send_action,
        _silent_operator,
        _unfinished_action,
        _actions_absurd,
    ),
    "view": Service(
        "view",
        ("proctor.report.server.serve",),
        _good_http,
        _ask_http,
        lambda port: socket.create_connection((HOST, port), ANSWER_S),
        _unfinished_http,
        _http_absurd,
    ),
}
