"""The ZeroMQ endpoint serves libzmq clients, and no client can make it buffer too much."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import zmq

from proctor.errors import ProtocolError
from proctor.protocols.zmtp import frames as zmtp
from tests.refusals import refuses
from tests.unit.protocols.serving import asked, served

PING = {"endpoint": "ping"}
MIB = 2**20
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


@contextmanager
def req(url: str) -> Iterator[Any]:
    """A client of the zmq library."""
    with zmq.Context() as context, context.socket(zmq.REQ) as line:
        line.setsockopt(zmq.LINGER, 0)
        line.setsockopt(zmq.RCVTIMEO, 60_000)
        line.connect(url)
        yield line


@contextmanager
def raw(url: str) -> Iterator[socket.socket]:
    """A raw socket after the handshake, which can send any bytes."""
    at = urlsplit(url)
    with socket.create_connection((at.hostname, at.port), timeout=60) as line:
        line.sendall(zmtp.GREETING + zmtp.ready_command("REQ"))
        received(line, zmtp.GREETING_BYTES + len(zmtp.ready_command()))
        yield line


def received(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = line.recv(size - len(found))
        assert more, "it hung up"
        found += more
    return found


def part(body: bytes, *, more: bool) -> bytes:
    return bytes([2 + more]) + struct.pack(">Q", len(body)) + body


def test_a_message_of_other_parts_is_answered_with_one_line_and_the_server_goes_on() -> None:
    with served(protocol=["groot"]) as (url, _), req(url) as line:
        for parts in ([b"a", b"b"], [b"x"] * 60):
            line.send_multipart(parts)
            said = unpack(line.recv())["error"]
            assert said.endswith(f"{len(parts) + 1} parts")
            assert "\n" not in said
        line.send(pack(PING))
        assert unpack(line.recv())["status"] == "ok"


def test_a_message_that_is_too_large_is_answered_with_one_line_and_the_server_goes_on() -> None:
    with served(protocol=["groot"], max_message_mb=1) as (url, _), req(url) as line:
        for parts in ([bytes(MIB + 1)], [bytes(MIB)] * 3):
            line.send_multipart(parts)
            said = unpack(line.recv())["error"]
            assert said.endswith(f"{MIB} (--max_message_mb)")
        line.send(pack({**PING, "data": bytes(MIB - 100)}))
        assert unpack(line.recv())["status"] == "ok"


def test_a_message_without_an_end_is_cut_off_and_is_not_kept() -> None:
    def held() -> int:
        with open("/proc/self/statm") as file:  # noqa: PTH123  this process is the server's, too
            return int(file.read().split()[1]) * 4096

    with served(protocol=["groot"], max_message_mb=1) as (url, _), raw(url) as line:
        asked(url, PING)
        before, block = held(), part(bytes(MIB), more=True)
        for _ in range(60):
            line.sendall(block)
        assert held() - before < 20 * MIB, "of 60 MiB"
        assert asked(url, PING)["status"] == "ok"
        line.sendall(part(b"", more=True) * 10)
        received(line, 10)
        with pytest.raises(OSError, match=r"[Pp]ipe|reset"):
            line.sendall(block * 50)
        assert asked(url, PING)["status"] == "ok"


def test_clients_without_the_key_hold_a_few_large_requests_at_a_time() -> None:
    def held() -> int:
        with open("/proc/self/statm") as file:  # noqa: PTH123  this process is the server's, too
            return int(file.read().split()[1]) * 4096

    message = part(b"", more=True) + part(bytes(8 * MIB), more=False)
    all_but_the_end = memoryview(message)[:-1]

    def send(line: socket.socket) -> None:
        with contextlib.suppress(OSError):
            line.sendall(all_but_the_end)

    with served(protocol=["groot"], api_key="key") as (url, _), contextlib.ExitStack() as opened:
        lines = [opened.enter_context(raw(url)) for _ in range(16)]
        before = held()
        senders = [threading.Thread(target=send, args=(line,)) for line in lines]
        for sender in senders:
            sender.start()
        time.sleep(2)
        assert held() - before < 90 * MIB, "of 128 MiB"
        assert asked(url, {**PING, "api_token": "key"})["status"] == "ok"
        for line in lines:
            line.shutdown(socket.SHUT_RDWR)
        for sender in senders:
            sender.join()


@pytest.mark.parametrize("key", ["key", None])
@pytest.mark.parametrize(
    "said",
    [
        b"\x00\x00",
        b"\x04\x00",
        b"\x04\x07\x04PING\x00\x10",
        zmtp.encode_reply(pack({"endpoint": "x"})),
    ],
    ids=["empty parts", "empty commands", "heartbeats", "requests"],
)
def test_many_messages_that_cost_a_peer_nothing_are_not_read_to_their_end(
    said: bytes, key: str | None
) -> None:
    if key is None and len(said) > 10:
        said = b"\x00\x00"  # without a key, requests are answered
    with served(protocol=["groot"], api_key=key) as (url, _), raw(url) as line:
        began = time.process_time()
        with pytest.raises((AssertionError, OSError)):  # noqa: PT012  it may hang up at any time
            line.sendall(said * 200_000)
            received(line, 200_000_000)
        assert time.process_time() - began < 1


def test_a_large_request_is_taken_of_who_shows_the_key_with_it_and_hung_up_on_of_others() -> None:
    large = {**PING, "data": bytes(MIB)}
    with served(protocol=["groot"], api_key="key") as (url, _):
        for _ in range(6):  # places are given back
            assert asked(url, {**large, "api_token": "key"})["status"] == "ok"
            assert "Unauthorized" in asked(url, large)["error"]
        with raw(url) as line:
            line.sendall(zmtp.encode_reply(pack(large)))
            with pytest.raises((AssertionError, ConnectionResetError)):
                received(line, 10_000)
        assert asked(url, {**PING, "api_token": "key"})["status"] == "ok"


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" + bytes(64),
        zmtp.GREETING[:10] + b"\x01\x00" + bytes(52),
        zmtp.GREETING.replace(b"NULL", b"PLAI"),
        zmtp.GREETING + b"\x00\x05hello",
        zmtp.GREETING + b"\x06" + struct.pack(">Q", 2**62),
        zmtp.GREETING + zmtp.ready_command("REQ") + b"\xff" * 20,
        zmtp.GREETING + zmtp.ready_command("REQ") + b"\x06" + struct.pack(">Q", 2**62),
    ],
    ids=["http", "older", "keys", "no handshake", "large handshake", "no frame", "large command"],
)
def test_who_speaks_something_else_is_cut_off(said: bytes) -> None:
    with served(protocol=["groot"]) as (url, _):
        at = urlsplit(url)
        with socket.create_connection((at.hostname, at.port), timeout=60) as line:
            line.sendall(said)
            try:
                while line.recv(1000):
                    pass
            except ConnectionResetError:
                pass
        assert asked(url, PING)["status"] == "ok"


def test_heartbeats_are_answered_before_and_behind_a_request() -> None:
    beat = b"\x04\x0b\x04PING\x00\x10abcd"
    with served(protocol=["groot"]) as (url, _), raw(url) as line:
        line.sendall(beat + zmtp.encode_reply(pack(PING)) + beat)
        found = b""
        while found.count(b"\x04\x09\x04PONGabcd") < 2 or b"running" not in found:
            found += received(line, 1)  # in any order: a request may be thought about meanwhile


def test_the_silent_are_cut_off() -> None:
    with served(protocol=["groot"], idle_s=0.2) as (url, _):
        with pytest.raises((AssertionError, ConnectionError)), raw(url) as line:
            received(line, 1)
        assert asked(url, PING)["status"] == "ok"


def test_clients_leave_room_when_they_go() -> None:
    with served(protocol=["groot"], max_connections=1) as (url, service):
        with req(url) as first:
            first.send(pack(PING))
            first.recv()
            crowded = asked(url, PING)["error"]
            assert crowded == "too many connections (--max_connections)"
            first.send(pack({"endpoint": "get_action", "data": {"state.a": 1}}))
            first.recv()
        until = time.monotonic() + 60
        while "error" in asked(url, PING) and time.monotonic() < until:
            time.sleep(0.02)
        assert asked(url, PING)["status"] == "ok"
        assert not service.batcher._sessions


def test_connections_without_a_handshake_take_no_place_of_a_client() -> None:
    with served(protocol=["groot"], max_connections=1) as (url, _):
        at = urlsplit(url).hostname, urlsplit(url).port
        with socket.create_connection(at) as one, socket.create_connection(at) as other:
            assert received(one, 1) + received(other, 1) == b"\xff\xff"  # both are accepted
            assert asked(url, PING)["status"] == "ok"


def test_frames_are_read_as_they_are_written() -> None:
    assert zmtp.parse_flags(1) == (True, False, 1)
    assert zmtp.parse_flags(6) == (False, True, 8)
    for byte in (5, 8, 255):
        with refuses(ProtocolError, "protocol.invalid-frame"):
            zmtp.parse_flags(byte)
    assert zmtp.encode_reply(b"x") == b"\x01\x00\x00\x01x"
    assert zmtp.encode_reply(bytes(300))[:11] == b"\x01\x00\x02" + struct.pack(">Q", 300)
    assert zmtp.pong_reply(b"\x05READY") is None
