"""Forward and backward pass as one CUDA graph, so that the GPU does not wait for Python.

A step of a small network launches a thousand kernels of a few microseconds, and the GPU waits for
Python between them. A recorded graph launches them at once: the same kernels on the same numbers,
with noise drawn from (seed, step). Clipping, optimiser and EMA need few kernels and stay outside;
they are launched while the graph is still running.

torch.compile works inside: the steps before recording compile, and the graph records the compiled
kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from proctor.config.training import TrainConfig
from proctor.errors import TrainingError, UsageError, summarize_traceback
from proctor.policies.runtime.network import Network
from proctor.training.data.loading import Batch
from proctor.training.distributed import DistributedContext

LossAndParts = tuple[Tensor, dict[str, Tensor]]
Compute = Callable[[Batch, Batch], LossAndParts]
"""Computes the loss and its parts from a batch and noise; gradients accumulate in the weights."""

_FLAG = "--accelerator.cuda_graph"
_WARM_UP = 3
"""Steps before recording: torch.compile compiles, libraries select kernels and allocate memory."""


def uses_cuda_graph(
    config: TrainConfig, network: Network, device: torch.device, distributed: DistributedContext
) -> bool:
    """Return whether to use a CUDA graph: by default, whenever it is possible."""
    compiling = config.accelerator.compile
    reasons = {
        "the device is not CUDA": device.type != "cuda",
        f"{type(network).__name__} does not support CUDA graphs": (
            not network.loss_supports_cuda_graph
        ),
        "several processes train together": not distributed.is_single_process,
        "gradients are accumulated": config.accumulation > 1,
        "image augmentation is enabled": config.dataset.image_transforms.enable,
        f"--accelerator.compile.mode={compiling.mode} records CUDA graphs of its own": (
            compiling.records_cuda_graphs
        ),
    }
    requested = config.accelerator.cuda_graph
    obstacle = next((reason for reason, holds in reasons.items() if holds), None)
    if requested and obstacle is not None:
        raise UsageError(f"{_FLAG}=true: {obstacle}", code="flag.conflict")
    return obstacle is None and requested is not False


@dataclass(frozen=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    batch: Batch
    draws: Batch
    loss: Tensor
    parts: dict[str, Tensor]

    def fits(self, batch: Batch, draws: Batch) -> bool:
        return _shapes(batch) == _shapes(self.batch) and _shapes(draws) == _shapes(self.draws)


class GraphedStep:
    """Computes losses and gradients by a CUDA graph; overwrites the last step's gradients."""

    def __init__(
        self, compute: Compute, parameters: Sequence[nn.Parameter], device: torch.device
    ) -> None:
        self._compute, self._parameters = compute, parameters
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._before = _WARM_UP
        self._recorded: _Recorded | None = None

    def __call__(self, batch: Batch, draws: Batch) -> LossAndParts:
        """Return the loss and its parts of one batch."""
        if self._recorded is None and self._before == 0:
            self._recorded = self._record(batch, draws)
        if self._recorded is None or not self._recorded.fits(batch, draws):
            self._before = max(0, self._before - 1)
            return self.compute(batch, draws)
        recorded = self._recorded
        for held, given in ((recorded.batch, batch), (recorded.draws, draws)):
            for key, tensor in held.items():
                tensor.copy_(given[key], non_blocking=True)
        recorded.graph.replay()
        # The next replay overwrites these.
        return recorded.loss.clone(), {name: v.clone() for name, v in recorded.parts.items()}

    def compute(self, batch: Batch, draws: Batch) -> LossAndParts:
        """Compute without a graph, on the stream that is recorded later."""
        found = [p.grad for p in self._parameters if p.grad is not None]
        if found:
            torch._foreach_zero_(found)
        around = torch.cuda.current_stream()
        self._stream.wait_stream(around)
        with torch.cuda.stream(self._stream):
            loss, parts = self._compute(batch, draws)
        around.wait_stream(self._stream)
        return loss.detach(), parts

    def _record(self, batch: Batch, draws: Batch) -> _Recorded:
        held = {key: value.clone() for key, value in batch.items()}
        drawn = {key: value.clone() for key, value in draws.items()}
        for parameter in self._parameters:
            parameter.grad = None  # recording allocates the graph's own gradients
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads copy batches during recording.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                loss, parts = self._compute(held, drawn)
        except RuntimeError as error:
            raise TrainingError(
                f"cannot record a step as a CUDA graph: {summarize_traceback(str(error))}; "
                f"disable it with {_FLAG}=false",
                code="training.cuda-graph-failed",
            ) from error
        return _Recorded(graph, held, drawn, loss.detach(), parts)


def _shapes(tensors: Batch) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in tensors.items()}
