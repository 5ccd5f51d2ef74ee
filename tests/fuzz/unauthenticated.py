"""Fuzzing of raw bytes before the key is checked, at the port of a running server.

A case is 200 connections, each measured on its own: what the process takes for it, in all threads,
so the libraries that parse (websockets, gRPC) are measured too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import random
import socket
import struct
import urllib.request
from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import msgspec
import zmq
from hypothesis import strategies as st

from proctor.protocols import lerobot
from proctor.protocols.inference_messages import Protocol
from proctor.protocols.zmtp import frames as zmtp
from proctor.serving.service import PolicyService
from tests.fuzz.bounds import measured, unheard
from tests.fuzz.frames import AT_ONCE, groot_samples, lerobot_samples, mutated_frame
from tests.fuzz.hostile import Draw
from tests.fuzz.sandbox import BrokenPromise, Sandbox
from tests.unit.protocols.serving import served

MAX_CPU_S, MAX_MEMORY = 0.1, 64 * 2**20
"""Limits of one connection's resources."""
_HANG_S = 120
_TIMEOUT_S = 20.0
_KEY = random.SystemRandom().randbytes(16).hex()
_MIB = 2**20
pack = msgspec.msgpack.encode

# What comes over HTTP.

_UPGRADE = [
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
]
_PATHS = [
    "/", "/healthz", "/health", "/config", "/?api_key=x", "/?" + "api_key=x&" * 50, "//[", "*",
    "/?api_key=" + "%41" * 2000, "/" + "a" * 9000, "/?" + "&" * 8000, "/%ff%00", "http://[/", "",
    "/?" + "a[" * 2000, "/\x00", "/é",
]  # fmt: skip
_HEADERS = [
    "Authorization: Api-Key x", "Authorization: Bearer " + "x" * 8000, "Authorization:",
    "Authorization: Api-Key", "Origin: http://evil.example", "Origin: http://127.0.0.1",
    "Host: evil.example", "X: y\r\n" * 127 + "X: y", "X: y\r\n" * 500 + "X: y",
    "X: " + "y" * 70_000,
    "Cookie: " + "a=b; " * 1500, "Sec-WebSocket-Extensions: " + "permessage-deflate, " * 400,
    "Sec-WebSocket-Protocol: " + "a," * 4000, "Connection: " + "Upgrade, " * 800,
    "Content-Length: 9" + "9" * 5000, "Transfer-Encoding: chunked", " folded", "no colon",
    "X\x00: y",
    "Sec-WebSocket-Extensions: " + 'a; b="' + "\\" * 7000, "Upgrade: " + ",".join(["a/1"] * 1500),
    "Content-Length: 5", "Expect: 100-continue", ": ", "\t" * 5000 + "x",
]  # fmt: skip


def _http(chance: random.Random) -> bytes:
    method = chance.choice(["GET"] * 9 + ["POST", "HEAD", "", "get", "PRI", "G" * 9000])
    head = [f"{method} {chance.choice(_PATHS)} {chance.choice(['HTTP/1.1'] * 9 + ['HTTP/2', ''])}"]
    if chance.random() < 0.8:
        head.append("Host: 127.0.0.1:8000")
    head += [line for line in _UPGRADE if chance.random() < 0.9]
    head += [chance.choice(_HEADERS) for _ in range(chance.randrange(3))]
    chance.shuffle(head[1:])
    frames = [b"", b"\x82\x05hello", b"\x82\xff" + b"\xff" * 20, bytes(chance.randrange(5000))]
    return "\r\n".join([*head, "", ""]).encode() + chance.choice(frames)


def _websocket_bytes(chance: random.Random) -> bytes:
    said = _http(chance)
    return said if chance.random() < 0.5 else mutated_frame(chance, [said])


# What comes over ZeroMQ.

_NPY = b"\x93NUMPY\x01\x00"
_HEAD = b"{'descr': '<f4', 'fortran_order': False, 'shape': ("


@cache
def _groot_bombs() -> list[bytes]:
    heads = [_HEAD + b"1" * 60 + b"x", _HEAD + b"1, " * 300, _HEAD + b"1" * 900]
    arrays = [_NPY + struct.pack("<H", len(head)) + head for head in heads]
    bombs: list[Any] = [
        *({"__ndarray_class__": True, "as_npy": array} for array in arrays),
        dict.fromkeys(range(5000)),
        {"A" * _MIB: {str(place): 0 for place in range(3000)}},
        [{}] * 9000,
        ["é" * 1000] * 200,
        bytes(_MIB),
        bytes(15 * _MIB),
        {str(place): {str(inner): None for inner in range(50)} for place in range(150)},
    ]
    raw = [b"\x91" * 500_000, b"\x81\xa1a" * 200_000, b"\xdd\x00\x0f\xff\xff" + b"\xc0" * 2**20]
    packed = [pack({"endpoint": "get_action", "data": bomb}) for bomb in bombs]
    return packed + [b"\x82\xa8endpoint\xa4ping\xa4data" + bomb for bomb in raw] + raw


def _part(body: bytes, flags: int) -> bytes:
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | 2]) + struct.pack(">Q", len(body)) + body


def _groot_bytes(chance: random.Random) -> bytes:
    hello = zmtp.GREETING + zmtp.ready_command("REQ")
    messages = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if chance.random() < 0.01:
            body = chance.choice(_groot_bombs())
        else:
            body = mutated_frame(chance, groot_samples())
        messages.append(_part(b"", 1) + _part(body, chance.choice((0, 0, 0, 0, 0, 1, 4))))
    said = hello + b"".join(messages)
    return said if chance.random() < 0.6 else mutated_frame(chance, [said, hello])


# What comes over gRPC.


def _literal(name: bytes, value: bytes) -> bytes:
    """Return an HTTP/2 header, not compressed."""
    return b"\x00" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)])
    rest, out = len(text) - 127, bytearray([127])
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


def _http2(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return (
        struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body
    )


def _call(chance: random.Random, stream: int) -> bytes:
    names = (lerobot.READY, lerobot.SETUP, lerobot.OBSERVE, lerobot.ACT, "Nothing")
    method = chance.choice(names)
    told = [
        (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"127.0.0.1"),
        (b":path", f"/{lerobot.SERVICE}/{method}".encode()),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"),
    ]  # fmt: skip
    odd = [
        (b"authorization", b"Api-Key x"), (b"authorization", b"\xff" * 50), (b"x", b"y" * 15_000),
        (b"proctor-bin", b"!!"), (b"grpc-timeout", b"9" * 20), (b"grpc-encoding", b"gzip"),
        (b"X", b"y"), (b":path", b"/"), (b"", b""), (b"x", b"y" * 70_000),
    ]  # fmt: skip
    told += [chance.choice(odd) for _ in range(chance.randrange(3))]
    block = b"".join(_literal(name, value) for name, value in told)
    if chance.random() < 0.1:
        block += b"\xbe" * chance.randrange(3000)  # from the table of headers, again and again
    body = chance.choice(lerobot_samples())
    claimed = chance.choice((len(body), len(body), 2**31, 0))
    message = struct.pack(">BI", chance.choice((0, 0, 0, 1)), claimed) + body
    return _http2(1, 4, stream, block[: 2**14]) + _http2(0, 1, stream, message[: 2**14])


def _lerobot_bytes(chance: random.Random) -> bytes:
    hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _http2(4, 0, 0, b"")
    said = hello + b"".join(_call(chance, 1 + 2 * n) for n in range(chance.choice((1, 1, 2, 5))))
    others = [
        b"",
        _http2(9, 4, 1, b"\x00"),
        _http2(3, 0, 1, bytes(4)) * 50,
        _http2(6, 0, 0, bytes(8)),
    ]
    said += chance.choice(others)
    return said if chance.random() < 0.5 else mutated_frame(chance, [said, hello])


# Servers, and how a connection to them is judged.


def _server(protocol: Protocol, sandbox: Sandbox) -> tuple[str, PolicyService]:
    """Return a server with a key, which lives as long as the sandbox."""
    if protocol.value not in sandbox.servers:
        opened = served(protocol=[protocol.value], api_key=_KEY)
        sandbox.servers[protocol.value] = sandbox.held.enter_context(opened)
    return sandbox.servers[protocol.value]


def _said(port: int, data: bytes) -> None:
    """Send bytes and read until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            while line.recv(2**16):
                pass
        except TimeoutError:
            raise BrokenPromise("not hung up", repr(data[:300])) from None
        except OSError:
            return  # it hung up in the middle


def _judged(port: int, data: bytes, sandbox: Sandbox) -> None:
    """Check the resources for some bytes; retry once, since a garbage collection may interfere."""
    for _ in range(2):
        with measured() as taken:
            _said(port, data)
        if taken.cpu_s <= MAX_CPU_S and taken.memory <= MAX_MEMORY:
            sandbox.worst.note(taken)
            return
    what = "CPU time" if taken.cpu_s > MAX_CPU_S else "memory"
    text = f"{taken.cpu_s:.3f} s, {taken.memory / _MIB:.0f} MiB: {data[:300]!r}"
    raise BrokenPromise(f"too much {what}", text)


def _check_alive(protocol: Protocol, url: str) -> None:
    """Check that a client with the key is answered."""
    at = urlsplit(url)
    if protocol is Protocol.GROOT:
        with zmq.Context() as context, context.socket(zmq.REQ) as line:
            line.setsockopt(zmq.LINGER, 0)
            line.setsockopt(zmq.RCVTIMEO, int(_TIMEOUT_S * 1000))
            line.connect(url)
            line.send(pack({"endpoint": "ping", "api_token": _KEY}))
            assert msgspec.msgpack.decode(line.recv())["status"] == "ok"
    elif protocol is Protocol.LEROBOT:
        import grpc  # not before ours, which has it print nothing

        with grpc.insecure_channel(f"{at.hostname}:{at.port}") as channel:
            ready = channel.unary_unary(f"/{lerobot.SERVICE}/{lerobot.READY}")
            ready(b"", metadata=(("authorization", f"Api-Key {_KEY}"),), timeout=_TIMEOUT_S)
    else:
        path = "healthz" if protocol is Protocol.OPENPI else "health"
        page = f"http://{at.hostname}:{at.port}/{path}"
        with urllib.request.urlopen(page, timeout=_TIMEOUT_S) as answer:
            assert answer.status == 200


def _kind(protocol: Protocol, make: Callable[[random.Random], bytes]) -> Any:
    def attack(draw: Draw, sandbox: Sandbox) -> None:
        chance = random.Random(draw(st.integers(0, 2**64)))
        url, counter = _server(protocol, sandbox)
        port = urlsplit(url).port or 0
        gc.freeze()
        faulthandler.dump_traceback_later(_HANG_S, exit=True)
        try:
            with unheard() as said, contextlib.redirect_stderr(io.StringIO()) as printed:
                for _ in range(AT_ONCE):
                    _judged(port, make(chance), sandbox)
            _check_alive(protocol, url)
        finally:
            faulthandler.cancel_dump_traceback_later()
        if printed.getvalue() or said:
            raise BrokenPromise("printed", f"{printed.getvalue()[:2000]} {said[:1]!r:.2000}")
        if counter.batcher.answered:
            raise BrokenPromise("answered", "a policy was asked without a key")

    return attack


openpi_bytes = _kind(Protocol.OPENPI, _websocket_bytes)
vla_eval_bytes = _kind(Protocol.VLA_EVAL, _websocket_bytes)
groot_bytes = _kind(Protocol.GROOT, _groot_bytes)
lerobot_bytes = _kind(Protocol.LEROBOT, _lerobot_bytes)
