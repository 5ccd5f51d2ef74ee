"""Before the key is checked, each protocol runs only its reader in PRE_AUTH."""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import grpc
import numpy as np
import pytest
from websockets import http11

from proctor.errors import ProtocolError
from proctor.policies.remote.address import parse_addresses
from proctor.policies.remote.connection import ConnectionSettings, ServerConnection
from proctor.policies.remote.groot import GrootConnection
from proctor.policies.remote.lerobot import make_connector
from proctor.policies.remote.websocket import OpenpiConnection, VlaEvalConnection
from proctor.protocols import groot, lerobot
from proctor.protocols.formats.msgpack_arrays import pack
from proctor.protocols.inference_messages import InferenceRequest, Protocol
from proctor.protocols.preauth import PRE_AUTH
from proctor.system.limits import ServerLimits
from tests.unit.protocols.serving import asked, npy, served

KEY = "the-key"
SOURCES = Path(groot.__file__).parents[1]
STATE = np.zeros(2, np.float32)
ENVELOPE = {
    "protocols/groot.py:read_envelope",
    *(
        f"protocols/formats/msgpack_scan.py:{name}"
        for name in ("__init__", "head", "skip", "text", "end")
    ),
}
FRAMES = {
    f"protocols/zmtp/frames.py:{name}"
    for name in ("check_greeting", "check_null", "check_ready", "parse_flags")
}
READERS: dict[Protocol, set[str]] = {
    Protocol.OPENPI: set(),
    Protocol.VLA_EVAL: set(),
    Protocol.GROOT: FRAMES | ENVELOPE,
    Protocol.LEROBOT: set(),
}
"""The functions of ``protocols/`` that read bytes of an unauthenticated client."""
REFUSAL = {
    "protocols/groot.py:encode_reply",
    "protocols/formats/msgpack_arrays.py:pack",
    *(
        f"protocols/zmtp/frames.py:{name}"
        for name in ("ready_command", "<genexpr>", "encode_command", "encode_reply", "_frame")
    ),
}
"""The functions that write the reply to such a client."""


class Calls:
    """Records which functions of ``protocols/`` run in threads started meanwhile."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.on = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if (
            self.on
            and event == "call"
            and frame.f_code.co_filename.startswith(f"{SOURCES}/protocols/")
        ):
            path = Path(frame.f_code.co_filename).relative_to(SOURCES)
            self.seen.add(f"{path}:{frame.f_code.co_name}")

    @contextlib.contextmanager
    def noted(self) -> Iterator[set[str]]:
        self.seen.clear()
        self.on = True
        try:
            yield self.seen
        finally:
            self.on = False


@contextlib.contextmanager
def watched(protocol: Protocol) -> Iterator[tuple[str, Calls]]:
    """Serve one protocol with a key, and record the calls of its threads."""
    calls = Calls()
    threading.setprofile(calls)
    try:
        with served(protocol=[protocol.value], api_key=KEY) as (url, _):
            yield url, calls
    finally:
        threading.setprofile(None)


def dialled(protocol: Protocol, url: str, key: str | None) -> ServerConnection:
    address, settings = parse_addresses(url, None)[0], ConnectionSettings(api_key=key, connect_s=10)
    match protocol:
        case Protocol.OPENPI:
            return OpenpiConnection(address, settings)
        case Protocol.VLA_EVAL:
            return VlaEvalConnection(address, settings)
        case Protocol.GROOT:
            return GrootConnection(address, settings)
        case Protocol.LEROBOT:
            return make_connector(None)(address, settings)


def send_without_key(protocol: Protocol, url: str) -> None:
    """Send everything that a client sends, without the right key."""
    at = urlsplit(url)
    if protocol is Protocol.GROOT:
        for token in ({}, {"api_token": "wrong"}, {"api_token": None}):
            data = {"state": {"a": npy(STATE[None, None])}, "x": [b"\xff" * 100]}
            said = asked(url, {"endpoint": "get_action", "data": data, **token})
            assert "Unauthorized" in said["error"]
    elif protocol is Protocol.LEROBOT:
        with grpc.insecure_channel(f"{at.hostname}:{at.port}") as channel:
            message = lerobot.encode_setup(lerobot.PolicySetup("act", "here"))
            parts = list(
                lerobot.encode_observation(InferenceRequest({"observation.state": STATE}), 1)
            )
            for headers in (None, (("authorization", "Api-Key wrong"),)):
                for method in (lerobot.READY, lerobot.SETUP, lerobot.ACT):
                    call = channel.unary_unary(f"/{lerobot.SERVICE}/{method}")
                    with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
                        call(message, metadata=headers, timeout=60)
                streamed = channel.stream_unary(f"/{lerobot.SERVICE}/{lerobot.OBSERVE}")
                with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
                    streamed(iter(parts), metadata=headers, timeout=60)
    else:
        for header in ("", "Authorization: Api-Key wrong\r\n"):
            with socket.create_connection((at.hostname, at.port), timeout=60) as line:
                line.sendall(upgrade(at.port, header) + b"\x82\xfe\x10\x00\0\0\0\0" + bytes(4096))
                assert line.recv(100).startswith(b"HTTP/1.1 401")


def upgrade(port: int | None, header: str) -> bytes:
    """The request that opens a WebSocket."""
    return (
        f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade"
        f"\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n{header}"
        "\r\n"
    ).encode()


@pytest.mark.parametrize("protocol", Protocol, ids=lambda protocol: protocol.value)
def test_nothing_but_the_listed_reader_runs_without_the_key(protocol: Protocol) -> None:
    with watched(protocol) as (url, calls):
        with calls.noted() as seen:
            send_without_key(protocol, url)
        assert seen - REFUSAL == READERS[protocol]
        with calls.noted() as seen:  # and with the key, the decoders are seen to run
            link = dialled(protocol, url, KEY)
            with contextlib.suppress(ProtocolError):  # LeRobot's robots set something up before
                link.infer(InferenceRequest({"state/state": STATE}, "go"))
            link.close()
        decoders = {"openpi.py:decode_request", "vla_eval.py:decode", "groot.py:decode_request"}
        assert any(name.partition("/")[2] in {*decoders, "pickle/reader.py:load"} for name in seen)


def test_every_protocol_has_a_reader_with_bounds() -> None:
    assert set(PRE_AUTH) == set(READERS) == set(Protocol)
    for reader in PRE_AUTH.values():
        assert reader.max_bytes is None or reader.max_bytes <= 2**21
        assert reader.max_values <= 10_000
        assert reader.max_depth <= 32


def test_the_heads_of_requests_are_bounded_as_is_listed() -> None:
    listed = PRE_AUTH[Protocol.OPENPI]
    assert listed.max_values == http11.MAX_NUM_HEADERS
    assert listed.max_bytes == (http11.MAX_NUM_HEADERS + 2) * http11.MAX_LINE_LENGTH
    with served(api_key=KEY) as (url, _):
        at = urlsplit(url)
        for head in ("X: y\r\n" * (listed.max_values + 1), f"X: {'y' * 10_000}\r\n"):
            with socket.create_connection((at.hostname, at.port), timeout=60) as line:
                line.sendall(upgrade(at.port, head))
                assert line.recv(100)[:10] == b"HTTP/1.1 4"


def test_the_metadata_of_a_call_are_bounded_as_is_listed() -> None:
    most = PRE_AUTH[Protocol.LEROBOT].max_bytes
    assert most is not None
    with served(protocol=["lerobot"], api_key=KEY) as (url, _):
        at = urlsplit(url)
        with grpc.insecure_channel(f"{at.hostname}:{at.port}") as channel:
            call = channel.unary_unary(f"/{lerobot.SERVICE}/{lerobot.READY}")
            key = ("authorization", f"Api-Key {KEY}")
            assert call(b"", metadata=(key, ("x", "y" * (most // 4))), timeout=60) == b""
            with pytest.raises(grpc.RpcError, match="metadata"):
                call(b"", metadata=(key, ("x", "y" * most)), timeout=60)


@pytest.mark.parametrize(
    "frame",
    [
        pack({"endpoint": "ping", "data": [[None] * 6000] * 2}),
        b"\x82\xa8endpoint\xa4ping\xa4data" + b"\x91" * 40 + b"\xc0",
        pack({"endpoint": "x" * 2000}),
        pack({"endpoint": "ping", "api_token": "x" * 2000}),
        pack({"endpoint": None}),
        pack({"endpoint": b"ping"}),
        pack({"endpoint": "ping", "api_token": 1}),
        pack({str(place): 0 for place in range(20)}),
        b"\x82\xa9api_token\xa1a\xa9api_token\xa1b",
        b"\x82\xa8endpoint\xa4ping",
        pack({"endpoint": "ping"}) + b"\xc0",
        b"\x81\x01\x01",
        b"\x81\xa8endpoint\xa2\xff\xff",
        b"\x90",
        b"",
    ],
)
def test_an_envelope_beyond_its_bounds_is_refused(frame: bytes) -> None:
    began = time.process_time()
    with pytest.raises(ProtocolError):
        groot.read_envelope(frame)
    assert time.process_time() - began < 2


def test_an_envelope_keeps_its_data_as_they_came() -> None:
    data = {"a": [1, {"b": b"x" * 1000}]}
    frame = pack({"data": data, "api_token": "é", "endpoint": "reset", "other": {"x": [1]}})
    envelope = groot.read_envelope(frame)
    assert (envelope.endpoint, envelope.api_token) == ("reset", "é")
    assert envelope.data is not None
    assert bytes(envelope.data) == pack(data)
    assert groot.decode_request(envelope).data == data
    assert groot.read_envelope(b"\x80") == groot.Envelope(groot.ACT, None, None)


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((first, second))
        return first == second

    monkeypatch.setattr(secrets, "compare_digest", compare)
    limits = ServerLimits(api_key=KEY)
    assert [limits.accepts_key(key) for key in (KEY, "x", None, "\ud800")] == [
        True,
        False,
        False,
        False,
    ]
    assert len(compared) == 4


def test_a_171_byte_message_without_the_key_does_not_hang_the_server() -> None:
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1" * 60 + b"x"
    array = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
    bomb = {"endpoint": "ping", "data": {"__ndarray_class__": True, "as_npy": array}}
    with served(protocol=["groot"], api_key=KEY) as (url, _):
        began = time.process_time()
        assert "Unauthorized" in asked(url, bomb)["error"]
        assert ".npy" in asked(url, {**bomb, "api_token": KEY})["error"]
        assert asked(url, {"endpoint": "ping", "api_token": KEY})["status"] == "ok"
        assert time.process_time() - began < 5


def test_pages_of_health_need_no_key_and_read_no_body() -> None:
    with served(api_key=KEY) as (url, _):
        at = url.replace("ws:", "http:")
        with urllib.request.urlopen(f"{at}/healthz", timeout=60) as answer:
            assert answer.read() == b"OK\n"
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(f"{at}/healthz", data=b"x" * 1000, timeout=60)
    assert sys.getprofile() is None


def header(name: bytes, value: bytes) -> bytes:
    """Return an HTTP/2 header, not compressed."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


@pytest.mark.parametrize(
    ("path", "more"),
    [(b"/tra\x8bsport.AsyncInference/Ready", b""), (b"/x", header(b"authorization", b"\xff" * 9))],
)
def test_names_that_are_no_utf8_neither_end_the_server_nor_fill_its_log(
    path: bytes, more: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """gRPC's asyncio server would stop at this method; gRPC logs a traceback for this metadata."""
    told = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x")]
    told += [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
    block = b"".join(header(name, value) for name, value in told) + more
    frames = bytes(3) + b"\x04\0" + bytes(4)
    frames += len(block).to_bytes(3, "big") + b"\x01\x05\0\0\0\x01" + block
    with served(protocol=["lerobot"], api_key=KEY) as (url, _):
        at = urlsplit(url)
        for _ in range(3):
            with socket.create_connection((at.hostname, at.port), timeout=60) as line:
                line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frames)
                line.shutdown(socket.SHUT_WR)
                while line.recv(1000):
                    pass
        with grpc.insecure_channel(f"{at.hostname}:{at.port}") as channel:
            ready = channel.unary_unary(f"/{lerobot.SERVICE}/{lerobot.READY}")
            assert ready(b"", metadata=(("authorization", f"Api-Key {KEY}"),), timeout=60) == b""
    assert not caplog.records
