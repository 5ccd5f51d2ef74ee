"""How a training goes: its loss, and what its time was spent on."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from proctor.errors import TrainingError
from proctor.training.data import Batch
from proctor.training.distributed import SINGLE_PROCESS, DistributedContext

_MOST_UNSEEN = 1000


@dataclass(frozen=True)
class Metrics:
    """What is told of the steps since the last reading: means, but for the steps and ``lr``."""

    step: int
    steps: int
    """How many they are."""
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


class Series:
    """Numbers of a device, looked at when asked; past a thousand, so that they do not pile up.

    Of several processes it is their means; all of them look at the same time.
    """

    def __init__(self, distributed: DistributedContext = SINGLE_PROCESS) -> None:
        self._distributed = distributed
        self._fetched: list[float] = []
        self._on_device: list[Tensor] = []

    def add(self, value: Tensor) -> None:
        """Take in one more, without waiting for it."""
        self._on_device.append(value)
        if len(self._on_device) >= _MOST_UNSEEN:
            self.to_list()

    def to_list(self) -> list[float]:
        """Return all of them, once the device has computed them."""
        if self._on_device:
            self._fetched += self._distributed.mean(torch.stack(self._on_device)).tolist()
            self._on_device = []
        return self._fetched

    def mean(self) -> float:
        """Return their mean; of none, what is no number."""
        numbers = self.to_list()
        return sum(numbers) / len(numbers) if numbers else math.nan


class MetricTracker:
    """Adds up what steps give, and looks at it when asked: until then no device is waited for."""

    def __init__(self, device: torch.device, distributed: DistributedContext) -> None:
        self._device, self._distributed = device, distributed
        self._idle: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._reset()

    def _reset(self) -> None:
        self._losses, self._norms = Series(self._distributed), Series(self._distributed)
        self._parts: dict[str, Series] = {}
        self._steps = 0
        self._rows = 0
        self._waited_s = 0.0
        self._idle.clear()
        self._began = time.perf_counter()

    def timed_batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
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

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """Leave out of the steps' time what is done between them, such as a checkpoint."""
        if self._device.type == "cuda":  # what was asked of it before is theirs
            torch.cuda.synchronize(self._device)
        began = time.perf_counter()
        yield
        self._began += time.perf_counter() - began

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

    def add_step(
        self, rows: int, loss: Tensor, parts: dict[str, Tensor], norm: Tensor | None
    ) -> None:
        """Take in what a step gave."""
        self._rows += rows * self._distributed.share.world_size
        self._steps += 1
        self._losses.add(loss.detach())
        for name, value in parts.items():
            self._parts.setdefault(name, Series(self._distributed)).add(value)
        if norm is not None:
            self._norms.add(norm)

    def check_finite(self, step: int) -> None:
        """Look at what was noted since the last reading, of which ``step`` is the newest.

        Raises:
            TrainingError: a loss or gradient is no number: the weights are of no use any more.
        """
        for what, values in (("loss", self._losses), ("gradient", self._norms)):
            found = values.to_list()
            bad = next((i for i, value in enumerate(found) if not math.isfinite(value)), None)
            if bad is not None:
                where = f"of step {step - len(found) + 1 + bad}" if what == "loss" else f"by {step}"
                raise TrainingError(
                    f"the {what} {where} is {found[bad]}: the weights are lost; a lower "
                    "--optimizer.lr may help, and so may a look at the dataset's statistics",
                    code="training.not-finite",
                )

    def collect(self, step: int, lr: float) -> Metrics:
        """Return what happened since the last reading, and begin anew."""
        self.check_finite(step)
        elapsed = time.perf_counter() - self._began
        metrics = Metrics(
            step=step,
            steps=self._steps,
            loss=self._losses.mean(),
            grad_norm=self._norms.mean(),
            lr=lr,
            samples_per_s=self._rows / elapsed,
            step_s=elapsed / max(1, self._steps),
            waiting=self._waiting_s() / elapsed,
            memory_gb=memory_gb(self._device),
            parts={name: values.mean() for name, values in self._parts.items()},
        )
        self._reset()
        return metrics


def memory_gb(device: torch.device) -> float:
    """Return the most memory that was in use so far: the GPU's, or this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    used: Any = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(used) * (1 if sys.platform == "darwin" else 1024) / 2**30
