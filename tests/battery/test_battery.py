"""Every service survives every attack, within limits of memory, descriptors and time.

While an attack lasts, a good client is served. Afterwards the process lives, has few descriptors,
took little memory, and has printed no traceback.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.battery.attacks import ATTACKS, attacking
from tests.battery.child import LIMITS, MOST_DESCRIPTORS
from tests.battery.running import Child, running
from tests.battery.services import MIB, SERVICES

SERVED_S = 20.0
"""Longest wait of a good client, on a busy machine; it may try again."""
MOST_GROWTH = LIMITS.memory_bytes + 192 * MIB
"""Bytes of unfinished messages, and what decoding them and the libraries may take."""
CPU_S = 60.0


@pytest.fixture(scope="module")
def started() -> Iterator[Callable[[str], Child]]:
    """Return a function that starts a child once."""
    with ExitStack() as ending:
        yield cache(lambda name: ending.enter_context(running(name)))


@pytest.mark.parametrize("attack", list(ATTACKS))
@pytest.mark.parametrize("name", list(SERVICES))
def test_a_service_under_attack_serves_good_clients(
    started: Callable[[str], Child], name: str, attack: str
) -> None:
    service = SERVICES[name]
    child = started(service.child)
    port, before = child.ports[name], sum(child.info.cpu_times()[:2])
    service.good(port)
    with attacking(ATTACKS[attack], service, port):
        _is_served(service.good, port)
    _is_served(service.good, port)
    assert child.process.poll() is None, "the service has ended"
    assert child.info.num_fds() < MOST_DESCRIPTORS
    assert child.growth < MOST_GROWTH
    assert sum(child.info.cpu_times()[:2]) - before < CPU_S
    assert "Traceback" not in child.output


def _is_served(good: Callable[[int], None], port: int) -> None:
    """Act as a client that tries again."""
    deadline = time.monotonic() + SERVED_S
    while True:
        try:
            good(port)
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
