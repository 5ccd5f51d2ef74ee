"""At most so many processes drawing at a time.

A network on the GPU that pictures are drawn on takes its turn among all who draw. Fewer of them at
once let it answer sooner, while their pictures come as fast. No picture changes by it.

A slot is a byte of an unnamed file that a process has locked: the kernel gives it back when the
process ends, however it does. Whoever waits does so in a line, behind another such byte; the first
in line is told by a pipe that a slot came free, and looks now and then for those that nobody told
of because their holder was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time
from collections.abc import Iterator, Sequence
from multiprocessing import reduction
from typing import Any

from proctor.benchmarks.base import Benchmark, Sim
from proctor.engine.shared_memory import anonymous_file
from proctor.features import Array, FeatureKind, Observation
from proctor.types import EpisodeSpec, StepResult

PATIENCE_S = 2.0
"""How long the first in line waits before it draws all the same: one who hangs while drawing, until
the watchdog ends it, must not stop everybody else."""
_LOOK_AGAIN_S = 0.02


class DrawSlots:
    """``n`` slots for all processes together. Picklable while a process is being spawned."""

    def __init__(self, n: int, descriptors: Sequence[int] = ()) -> None:
        self._n = n
        self._file, self._freed, self._free = descriptors or (anonymous_file(n + 1), *os.pipe())
        for end in (self._freed, self._free):
            os.set_blocking(end, False)

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Hold a slot while the block runs, waiting for one first."""
        slot = self._take()
        try:
            yield
        finally:
            if slot is not None:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, slot)
                with contextlib.suppress(BlockingIOError):  # full: it says so already
                    os.write(self._free, b"f")

    def close(self) -> None:
        """Let go of the file and the pipe."""
        for descriptor in (self._file, self._freed, self._free):
            os.close(descriptor)

    def _take(self) -> int | None:
        """Wait for a slot; None when there was none for too long."""
        line = self._n
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, line)
        try:
            return self._first_in_line()
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, line)

    def _first_in_line(self) -> int | None:
        told = select.poll()
        told.register(self._freed, select.POLLIN)
        until = time.monotonic() + PATIENCE_S
        while (slot := self._one_that_is_free()) is None and time.monotonic() < until:
            if told.poll(1000 * _LOOK_AGAIN_S):
                os.read(self._freed, 4096)
        return slot

    def _one_that_is_free(self) -> int | None:
        for slot in range(self._n):
            with contextlib.suppress(BlockingIOError, PermissionError):  # as systems name it
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
                return slot
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        descriptors = (self._file, self._freed, self._free)
        handles = [reduction.DupFd(d) for d in descriptors]  # type: ignore[attr-defined, unused-ignore]
        return _attach, (self._n, handles)


def _attach(n: int, handles: list[Any]) -> DrawSlots:
    return DrawSlots(n, [handle.detach() for handle in handles])


class TurnTakingSim:
    """A simulator that draws while it holds a slot, and is otherwise the one it was."""

    def __init__(self, sim: Sim, benchmark: Benchmark, slots: DrawSlots) -> None:
        self._sim = sim
        self._slots = slots
        drawn = (FeatureKind.VISUAL, FeatureKind.FILM)
        self._pictures = {key for key, f in benchmark.features().items() if f.kind in drawn}

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset the world."""
        self._sim.reset(spec)

    def step(self, action: Array) -> StepResult:
        """Advance the world."""
        return self._sim.step(action)

    def observe(self, keys: Sequence[str]) -> Observation:
        """Observe ``keys``; when one of them is drawn, in turn."""
        if self._pictures.isdisjoint(keys):
            return self._sim.observe(keys)
        with self._slots.drawing():
            return self._sim.observe(keys)

    def physics(self) -> Array:
        """Return where the world is."""
        return self._sim.physics()

    def close(self) -> None:
        """Close the simulator."""
        self._sim.close()
