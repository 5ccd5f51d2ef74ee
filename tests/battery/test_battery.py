"""Every service survives every attack, within limits of memory, descriptors and time.

While an attack lasts, a good client is served. Afterwards the process lives, has few descriptors,
took little memory, and has printed no traceback.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil
import pytest

from tests.battery.attacks import ATTACKS
from tests.battery.child import LIMITS, MOST_DESCRIPTORS
from tests.battery.services import MIB, SERVICES

SERVED_S = 20.0
"""Longest wait of a good client, on a busy machine; it may try again."""
MOST_GROWTH = LIMITS.memory_bytes + 160 * MIB
"""Bytes of unfinished messages, and what decoding them and the libraries may take."""
CPU_S = 60.0


@dataclass
class Child:
    """A running child, what it printed, and its memory at the start."""

    process: subprocess.Popen[str]
    ports: dict[str, int]
    said: IO[str]
    memory: int

    @property
    def info(self) -> psutil.Process:
        return psutil.Process(self.process.pid)


@pytest.fixture(scope="module")
def started() -> Iterator[Callable[[str], Child]]:
    """Return a function that starts a child once."""
    children: dict[str, Child] = {}

    def start(name: str) -> Child:
        if name not in children:
            said = tempfile.TemporaryFile("w+")  # noqa: SIM115  open while the child runs
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.battery.child", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                cwd=Path(__file__).parents[2],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            assert process.stdout is not None
            line = process.stdout.readline()
            ports = {one: int(port) for one, _, port in (w.partition("=") for w in line.split())}
            memory = psutil.Process(process.pid).memory_info().rss
            children[name] = Child(process, ports, said, memory)
        return children[name]

    yield start
    for child in children.values():
        assert child.process.stdin is not None
        child.process.stdin.close()
        child.process.wait(60)


@pytest.mark.parametrize("attack", list(ATTACKS))
@pytest.mark.parametrize("name", list(SERVICES))
def test_a_service_under_attack_serves_good_clients(
    started: Callable[[str], Child], name: str, attack: str
) -> None:
    service = SERVICES[name]
    child = started(service.child)
    port, before = child.ports[name], sum(child.info.cpu_times()[:2])
    service.good(port)
    with ATTACKS[attack](service, port):
        _is_served(service.good, port)
    _is_served(service.good, port)
    assert child.process.poll() is None, "the service has ended"
    assert child.info.num_fds() < MOST_DESCRIPTORS
    assert child.info.memory_info().rss - child.memory < MOST_GROWTH
    assert sum(child.info.cpu_times()[:2]) - before < CPU_S
    child.said.seek(0)
    assert "Traceback" not in child.said.read()


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
