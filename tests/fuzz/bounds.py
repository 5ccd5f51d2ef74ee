"""Limits of a case: time, memory, and no output of libraries that bypasses Python."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

LONGEST_CPU_S, LONGEST_S = 3, 60
"""A case takes milliseconds; one that works or waits this long is a denial of service."""
ROOM = 3 * 2**30
"""Bytes of address space beyond the start, so that bombs fail instead of swapping."""


@contextmanager
def alarm() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"still running after {LONGEST_CPU_S} s of work or {LONGEST_S} s")

    timers = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL}
    before = {number: signal.signal(number, ring) for number in timers}
    signal.setitimer(signal.ITIMER_PROF, LONGEST_CPU_S)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        yield
    finally:
        for number, timer in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


@contextmanager
def unheard() -> Iterator[list[bytes]]:
    """Yield a list that finally holds output that bypassed Python: Rust panics, FFmpeg notes."""
    said: list[bytes] = []
    sys.stderr.flush()
    kept, heard = os.dup(2), os.memfd_create("stderr")
    os.dup2(heard, 2)
    try:
        yield said
    finally:
        os.dup2(kept, 2)
        size = os.lseek(heard, 0, os.SEEK_CUR)
        said += [os.pread(heard, size, 0)] if size else []
        os.close(kept)
        os.close(heard)


@contextmanager
def little_room() -> Iterator[None]:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@dataclass
class Taken:
    """Resources that a block used, over all threads of this process."""

    cpu_s: float = 0.0
    memory: int = 0
    """Peak resident memory in bytes, beyond that before the block."""

    def note(self, other: Taken) -> None:
        """Keep the maximum of each field."""
        self.cpu_s, self.memory = max(self.cpu_s, other.cpu_s), max(self.memory, other.memory)


@contextmanager
def measured() -> Iterator[Taken]:
    taken = Taken()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before, began = _peak(), time.process_time()
    try:
        yield taken
    finally:
        taken.cpu_s, taken.memory = time.process_time() - began, _peak() - before


def _peak() -> int:
    with open("/proc/self/status", "rb") as file:  # noqa: PTH123  five times as fast
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"VmHWM"))
