"""Metrics of a training: loss, throughput and waiting time."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from proctor.errors import TrainingError
from proctor.training.data.loading import Batch
from proctor.training.distributed import SINGLE_PROCESS, DistributedContext
from proctor.training.optim.divergence import COMPARED_STEPS, KEPT_STEPS, Divergence, StepRecord

_MAX_ON_DEVICE = 1000
_MOST_IN_A_ROW, _MOST_SKIPPED = 3, 20
"""Steps in a row without a finite loss or gradient, or with a skipped update, after which a
training has diverged."""


@dataclass(frozen=True)
class Metrics:
    """Metrics of the steps since the last report: means, except the steps and ``lr``."""

    step: int
    steps: int
    """Number of steps in this report."""
    loss: float
    grad_norm: float
    lr: float
    samples_per_s: float
    step_s: float
    waiting: float
    """Fraction of the time spent waiting for batches."""
    memory_gb: float
    parts: dict[str, float] = field(default_factory=dict)
    """Parts of the loss, by the network's names."""
    skipped: int = 0
    """Updates that were skipped, because of their gradient."""


@dataclass(frozen=True)
class Update:
    """An update of the weights, on the device."""

    norm: Tensor
    """Gradient norm before clipping."""
    skipped: Tensor
    """Whether the weights were left as they are."""


class DivergedTraining(TrainingError):
    """The weights are useless, or no update is possible any more."""

    def __init__(
        self, text: str, step: int, *, code: str, divergence: Divergence | None = None
    ) -> None:
        """Describe what was noticed at ``step``; with ``divergence`` it is already explained."""
        super().__init__(text, code=code)
        self.step, self.divergence = step, divergence


class Series:
    """Values on a device, fetched on demand, and whenever a thousand have accumulated.

    With several processes these are means over all of them; all processes fetch together.
    """

    def __init__(self, distributed: DistributedContext = SINGLE_PROCESS) -> None:
        self._distributed = distributed
        self._fetched: list[float] = []
        self._on_device: list[Tensor] = []

    def add(self, value: Tensor) -> None:
        """Add a value without waiting for the device."""
        self._on_device.append(value)
        if len(self._on_device) >= _MAX_ON_DEVICE:
            self.to_list()

    def to_list(self) -> list[float]:
        """Return all values, after the device has computed them."""
        if self._on_device:
            self._fetched += self._distributed.mean(torch.stack(self._on_device)).tolist()
            self._on_device = []
        return self._fetched

    def mean(self) -> float:
        """Return the mean of the finite values; NaN without any."""
        numbers = [number for number in self.to_list() if math.isfinite(number)]
        return sum(numbers) / len(numbers) if numbers else math.nan


class MetricTracker:
    """Collects the results of steps without waiting for the device until they are needed."""

    def __init__(self, device: torch.device, distributed: DistributedContext) -> None:
        self._device, self._distributed = device, distributed
        self._idle: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._reported_finite = True
        self._earlier: deque[StepRecord] = deque(maxlen=COMPARED_STEPS)
        """The last steps before the last report."""
        self._reset()

    @property
    def has_steps(self) -> bool:
        """Whether there were steps since the last report."""
        return self._steps > 0

    def _reset(self) -> None:
        self._losses, self._norms, self._skips = (Series(self._distributed) for _ in range(3))
        self._updates: list[bool] = []
        """Whether each step ended with an update."""
        self._parts: dict[str, Series] = {}
        self._steps = 0
        self._rows = 0
        self._waited_s = 0.0
        self._idle.clear()
        self._began = time.perf_counter()

    def timed_batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches and measure the time spent waiting for each.

        A GPU is still busy when the next batch is requested, so its idle time counts: from the end
        of its last step to the start of the next.
        """
        iterator = iter(batches)
        first = next(iterator, None)
        if first is None:
            return
        self._reset()  # excludes the start of the loader
        yield first
        while True:
            requested_at, ended = time.perf_counter(), self._mark()
            batch = next(iterator, None)
            started = self._mark()
            if ended is not None and started is not None:
                self._idle.append((ended, started))
            else:
                self._waited_s += time.perf_counter() - requested_at
            if batch is None:
                return
            yield batch

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """Exclude the block from the time of the steps, such as writing a checkpoint."""
        if self._device.type == "cuda":  # pending work belongs to the steps
            torch.cuda.synchronize(self._device)
        began = time.perf_counter()
        yield
        self._began += time.perf_counter() - began

    def _mark(self) -> torch.cuda.Event | None:
        """Record an event on the GPU."""
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
        self, rows: int, loss: Tensor, parts: dict[str, Tensor], update: Update | None
    ) -> None:
        """Add the results of a step, which ended with an ``update`` or not."""
        self._rows += rows * self._distributed.share.world_size
        self._steps += 1
        self._losses.add(loss.detach())
        for name, value in parts.items():
            self._parts.setdefault(name, Series(self._distributed)).add(value)
        self._updates.append(update is not None)
        if update is not None:
            self._norms.add(update.norm)
            self._skips.add(update.skipped.float())

    def _records(self, step: int) -> list[StepRecord]:
        """Return the steps since the last report; ``step`` is the newest one."""
        losses, norms, skips = self._losses.to_list(), self._norms.to_list(), self._skips.to_list()
        of_updates = zip(norms, skips, strict=True)
        found = []
        for number, (loss, updated) in enumerate(zip(losses, self._updates, strict=True)):
            norm, skipped = next(of_updates) if updated else (None, 0.0)
            at = step - len(losses) + 1 + number
            found.append(StepRecord(at, loss, norm, skipped=skipped > 0))
        return found

    def last_steps(self, step: int) -> list[StepRecord]:
        """Return the last steps of this session; ``step`` is the newest one."""
        return [*self._earlier, *self._records(step)][-KEPT_STEPS:]

    @property
    def reported_steps(self) -> list[StepRecord]:
        """The last steps until the last report."""
        return list(self._earlier)

    def check_finite(self, step: int) -> None:
        """Check all results since the last report; ``step`` is the newest step.

        A single step without a finite gradient changes no weights (``gradient_guard``).

        Raises:
            DivergedTraining: losses or gradient norms are NaN or infinite in several steps in a
                row, or in all, so the weights are useless; or many updates in a row were skipped.
        """
        records = self._records(step)
        updates = [record for record in records if record.grad_norm is not None]
        for what, of, values in (
            ("loss", records, [record.loss for record in records]),
            ("gradient norm", updates, [record.grad_norm or 0.0 for record in updates]),
        ):
            bad = _first_of_bad_run(values)
            if bad is not None:
                raise DivergedTraining(
                    f"the {what} of step {of[bad].step} is {values[bad]}, so the weights are "
                    "useless",
                    of[bad].step,
                    code="training.not-finite",
                )
        recent = self.last_steps(step)
        self._check_skipped([record for record in recent if record.grad_norm is not None])

    def _check_skipped(self, updates: Sequence[StepRecord]) -> None:
        in_a_row = 0
        for number, update in enumerate(updates):
            in_a_row = in_a_row + 1 if update.skipped else 0
            if in_a_row == _MOST_SKIPPED:
                first = updates[number - _MOST_SKIPPED + 1]
                raise DivergedTraining(
                    f"{_MOST_SKIPPED} updates in a row were skipped, from step {first.step} on: "
                    "their gradient norms are too large (--optimizer.grad_skip_factor)",
                    first.step,
                    code="training.gradient-spikes",
                )

    @property
    def ends_finite(self) -> bool:
        """Whether the newest loss is finite."""
        losses = self._losses.to_list()
        return math.isfinite(losses[-1]) if losses else self._reported_finite

    def collect(self, step: int, lr: float) -> Metrics:
        """Return the metrics since the last report, and reset."""
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
            skipped=int(sum(self._skips.to_list())),
        )
        self._reported_finite = self.ends_finite
        self._earlier.extend(self._records(step))
        self._reset()
        return metrics


def _first_of_bad_run(values: Sequence[float]) -> int | None:
    """Return where NaN or infinity begins to repeat; None if there are only single ones."""
    for start in range(len(values)):
        run = values[start : start + _MOST_IN_A_ROW]
        whole = len(run) == _MOST_IN_A_ROW or len(run) == len(values)
        if whole and not any(map(math.isfinite, run)):
            return start
    return None


def memory_gb(device: torch.device) -> float:
    """Return the peak memory in GiB, of the GPU or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    used: Any = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(used) * (1 if sys.platform == "darwin" else 1024) / 2**30
