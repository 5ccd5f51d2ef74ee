"""How a training goes: its loss, and what its time was spent on."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from proctor.errors import TrainingError
from proctor.training.data import Batch


@dataclass(frozen=True)
class Reading:
    """What is told of the steps since the last reading: means, but for ``step`` and ``lr``."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    samples_per_s: float
    step_s: float
    waiting: float
    """Share of the time in which there was no batch to compute with."""
    memory_gb: float
    parts: dict[str, float] = field(default_factory=dict)
    """What the loss is made of, by the names its network gives."""


class Meter:
    """Adds up what steps give, and looks at it when asked: until then no device is waited for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._idle: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._reset()

    def _reset(self) -> None:
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._parts: dict[str, list[Tensor]] = {}
        self._rows = 0
        self._waited_s = 0.0
        self._idle.clear()
        self._began = time.perf_counter()

    def waiting_for(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches, and time how long each has to be waited for.

        A GPU is still busy when the next batch is asked for: what counts is how long it had nothing
        to do, from the end of its last step to the start of the next.
        """
        iterator = iter(batches)
        first = next(iterator, None)
        if first is None:
            return
        self._reset()  # what it took to begin is no part of any step
        yield first
        while True:
            asked, ended = time.perf_counter(), self._mark()
            batch = next(iterator, None)
            started = self._mark()
            if ended is not None and started is not None:
                self._idle.append((ended, started))
            else:
                self._waited_s += time.perf_counter() - asked
            if batch is None:
                return
            yield batch

    def _mark(self) -> torch.cuda.Event | None:
        """Mark where the GPU is in its work."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _waiting_s(self) -> float:
        if self._idle:
            torch.cuda.synchronize(self._device)
        idle_ms: float = sum(a.elapsed_time(b) for a, b in self._idle)
        return self._waited_s + idle_ms / 1000

    def note(self, rows: int, loss: Tensor, parts: dict[str, Tensor], norm: Tensor | None) -> None:
        """Take in what a step gave."""
        self._rows += rows
        self._losses.append(loss.detach())
        for name, value in parts.items():
            self._parts.setdefault(name, []).append(value)
        if norm is not None:
            self._norms.append(norm)

    def check(self, step: int) -> None:
        """Look at what was noted since the last reading, of which ``step`` is the newest.

        Raises:
            TrainingError: a loss or gradient is no number: the weights are of no use any more.
        """
        for what, values in (("loss", self._losses), ("gradient", self._norms)):
            found = _numbers(values)
            bad = next((i for i, value in enumerate(found) if not math.isfinite(value)), None)
            if bad is not None:
                where = f"of step {step - len(found) + 1 + bad}" if what == "loss" else f"by {step}"
                raise TrainingError(
                    f"the {what} {where} is {found[bad]}: the weights are lost; a lower "
                    "--optimizer.lr may help, and so may a look at the dataset's statistics"
                )

    def read(self, step: int, lr: float) -> Reading:
        """Return what happened since the last reading, and begin anew."""
        self.check(step)
        elapsed = time.perf_counter() - self._began
        n = max(1, len(self._losses))
        reading = Reading(
            step=step,
            loss=_mean(self._losses),
            grad_norm=_mean(self._norms),
            lr=lr,
            samples_per_s=self._rows / elapsed,
            step_s=elapsed / n,
            waiting=self._waiting_s() / elapsed,
            memory_gb=memory_gb(self._device),
            parts={name: _mean(values) for name, values in self._parts.items()},
        )
        self._reset()
        return reading


def _numbers(values: list[Tensor]) -> list[float]:
    numbers: list[float] = torch.stack(values).tolist() if values else []
    return numbers


def _mean(values: list[Tensor]) -> float:
    numbers = _numbers(values)
    return sum(numbers) / len(numbers) if numbers else math.nan


def memory_gb(device: torch.device) -> float:
    """Return the most memory that was in use so far: the GPU's, or this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    used: Any = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(used) * (1 if sys.platform == "darwin" else 1024) / 2**30
