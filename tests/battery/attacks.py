"""The table of attacks: each takes a service and its port, and yields while it lasts."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.battery.services import ANSWER_S, HOST, MIB, Service

IDLE, SILENT, UNFINISHED, FLOOD = 400, 60, 16, 60
Attack = Callable[[Service, int], contextlib.AbstractContextManager[None]]
ATTACKS: dict[str, Attack] = {}


def attack(strike: Callable[[Service, int], Iterator[None]]) -> Attack:
    """Add an attack to the table."""
    made = contextlib.contextmanager(strike)
    ATTACKS[strike.__name__] = made
    return made


@contextlib.contextmanager
def _held(opened: Callable[[], Any], count: int) -> Iterator[None]:
    """Hold as many connections as the service lets us open."""
    held = []
    try:
        with ThreadPoolExecutor(8) as pool:
            for made in [pool.submit(opened) for _ in range(count)]:
                with contextlib.suppress(Exception):
                    held.append(made.result())
        yield
    finally:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(_closed, held))


def _closed(one: Any) -> None:
    with contextlib.suppress(OSError):
        one.close()


def _connected(port: int, *sent: bytes) -> socket.socket:
    line = socket.create_connection((HOST, port), ANSWER_S)
    with contextlib.suppress(OSError):
        for part in sent:
            line.sendall(part)
    return line


@attack
def idle_connections(service: Service, port: int) -> Iterator[None]:
    with _held(lambda: _connected(port), IDLE):
        yield


@attack
def half_open_handshakes(service: Service, port: int) -> Iterator[None]:
    starts = (
        b"GET / HTTP/1.1\r\nHost: 127",
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x03",
        b"PRI * HTTP/2.0\r\n",
    )
    with contextlib.ExitStack() as all_of_them:
        for start in starts:
            all_of_them.enter_context(_held(lambda: _connected(port, start), 60))  # noqa: B023
        yield


@attack
def wrong_greetings(service: Service, port: int) -> Iterator[None]:
    chance = random.Random(1)
    starts = (
        b"",
        b"\x16\x03\x01\x02\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL",
        b"SSH-2.0-x\r\n",
    )
    for start in starts:
        for size in (1, 100, 5000):
            _connected(port, start + chance.randbytes(size)).close()
    yield


@attack
def silent_calls(service: Service, port: int) -> Iterator[None]:
    with _held(lambda: service.silent(port), SILENT):
        yield


@attack
def unfinished_messages(service: Service, port: int) -> Iterator[None]:
    with _held(lambda: service.unfinished(port, 12 * MIB), UNFINISHED):
        yield


@attack
def oversized_messages(service: Service, port: int) -> Iterator[None]:
    with _held(lambda: service.unfinished(port, 40 * MIB), 4):
        yield


@attack
def absurd_messages(service: Service, port: int) -> Iterator[None]:
    """Integers of 400 digits, deep nesting, NaN and infinity, announced 20,000x20,000 pixels."""
    for message in service.hostile():
        with contextlib.suppress(Exception):  # the client library may refuse first
            service.send(port, message)
    yield


@attack
def flood_of_nonsense(service: Service, port: int) -> Iterator[None]:
    messages, chance = [*service.hostile()], random.Random(2)

    def strike(number: int) -> None:
        message = bytearray(messages[number % len(messages)][: 64 * 1024])
        for _ in range(4):
            message[chance.randrange(len(message))] = chance.randrange(256)
        with contextlib.suppress(Exception):
            service.send(port, bytes(message))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(strike, range(FLOOD)))
    yield
