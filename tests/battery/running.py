"""Starts a child process with services, and knows what it takes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

REPOSITORY = Path(__file__).parents[2]


@dataclass
class Child:
    """A running child, what it printed, and its memory in bytes at the start."""

    process: subprocess.Popen[str]
    ports: dict[str, int]
    said: IO[str]
    memory: int

    @property
    def info(self) -> psutil.Process:
        return psutil.Process(self.process.pid)

    @property
    def growth(self) -> int:
        """Bytes of memory that it took since its start."""
        return int(self.info.memory_info().rss) - self.memory

    @property
    def output(self) -> str:
        self.said.seek(0)
        return self.said.read()


@contextmanager
def running(name: str) -> Iterator[Child]:
    """Start the child ``name`` of ``child.CHILDREN``, and end it."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.battery.child", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            cwd=REPOSITORY,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        assert process.stdin is not None
        words = process.stdout.readline().split()
        ports = {one: int(port) for one, _, port in (word.partition("=") for word in words)}
        try:
            yield Child(process, ports, said, psutil.Process(process.pid).memory_info().rss)
        finally:
            process.stdin.close()
            process.wait(60)
