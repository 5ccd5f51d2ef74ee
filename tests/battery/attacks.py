"""The table of attacks: what one strike does to a service, and how many strikes the tests make."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.battery.services import ANSWER_S, HOST, MIB, Service


@dataclass(frozen=True)
class Attack:
    """An attack of many equal strikes."""

    strike: Callable[[Service, int, int], Any]
    """Strikes a service at a port, given the strike's number; returns what to close, or None."""
    strikes: int
    threads: int = 8
    is_large: bool = False
    """Whether the strikes send messages of megabytes."""


def _connected(port: int, *sent: bytes) -> socket.socket:
    line = socket.create_connection((HOST, port), ANSWER_S)
    with contextlib.suppress(OSError):
        for part in sent:
            line.sendall(part)
    return line


def _idle_connections(service: Service, port: int, number: int) -> Any:
    return _connected(port)


_HALF_OPEN = (
    b"GET / HTTP/1.1\r\nHost: 127",
    b"\xff\0\0\0\0\0\0\0\x01\x7f\x03",
    b"PRI * HTTP/2.0\r\n",
)


def _half_open_handshakes(service: Service, port: int, number: int) -> Any:
    return _connected(port, _HALF_OPEN[number % len(_HALF_OPEN)])


_GREETINGS = (
    b"",
    b"\x16\x03\x01\x02\0",
    b"GET / HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL",
    b"SSH-2.0-x\r\n",
)


def _wrong_greetings(service: Service, port: int, number: int) -> None:
    size = (1, 100, 5000)[number // len(_GREETINGS) % 3]
    greeting = _GREETINGS[number % len(_GREETINGS)] + random.Random(number).randbytes(size)
    _connected(port, greeting).close()


def _silent_calls(service: Service, port: int, number: int) -> Any:
    return service.silent(port)


def _unfinished_messages(service: Service, port: int, number: int) -> Any:
    return service.unfinished(port, 12 * MIB)


def _oversized_messages(service: Service, port: int, number: int) -> Any:
    return service.unfinished(port, 40 * MIB)


@cache
def _hostile(service: Service) -> Sequence[bytes]:
    return service.hostile()


def _absurd_messages(service: Service, port: int, number: int) -> None:
    """Send integers of 400 digits, deep nesting, NaN and infinity, or 20,000x20,000 pixels."""
    messages = _hostile(service)
    service.send(port, messages[number % len(messages)])


def _flood_of_nonsense(service: Service, port: int, number: int) -> None:
    messages, chance = _hostile(service), random.Random(number)
    message = bytearray(messages[number % len(messages)][: 64 * 1024])
    for _ in range(4):
        message[chance.randrange(len(message))] = chance.randrange(256)
    service.send(port, bytes(message))


ATTACKS = {
    "idle_connections": Attack(_idle_connections, 400),
    "half_open_handshakes": Attack(_half_open_handshakes, 180),
    "wrong_greetings": Attack(_wrong_greetings, 18),
    "silent_calls": Attack(_silent_calls, 60),
    "unfinished_messages": Attack(_unfinished_messages, 16, is_large=True),
    "oversized_messages": Attack(_oversized_messages, 4, is_large=True),
    "absurd_messages": Attack(_absurd_messages, 32),
    "flood_of_nonsense": Attack(_flood_of_nonsense, 60, threads=16),
}


@contextlib.contextmanager
def attacking(attack: Attack, service: Service, port: int) -> Iterator[None]:
    """Strike as often as the attack says, and hold what the service lets us open."""

    def strike(number: int) -> Any:
        with contextlib.suppress(Exception):  # the service refuses, or our own library does
            return attack.strike(service, port, number)

    with ThreadPoolExecutor(attack.threads) as pool:
        held = list(pool.map(strike, range(attack.strikes)))
        try:
            yield
        finally:
            list(pool.map(closed, held))


def closed(one: Any) -> None:
    """Close what a strike has opened, if it has opened anything."""
    if one is not None:
        with contextlib.suppress(OSError):
            one.close()
