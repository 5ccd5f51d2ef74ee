"""Forward and backward of a training as one CUDA graph: the GPU need not wait for Python.

A step of a small network is a thousand kernels of a few microseconds each, which Python hands out
one by one while the GPU waits. Recorded once, they are handed out at once: the same kernels on the
same numbers, drawn as ever from (seed, step). Clipping, optimiser and averages, a few kernels each,
stay as they are: they are handed out while the graph still computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from proctor.config.training import TrainConfig
from proctor.errors import TrainingError, UsageError, summarize_traceback
from proctor.policies.runtime.network import Network
from proctor.training.data import Batch
from proctor.training.distributed import DistributedContext

LossAndParts = tuple[Tensor, dict[str, Tensor]]
Compute = Callable[[Batch, Batch], LossAndParts]
"""Batch and draws on the device to the loss and its parts, the gradients left at the weights."""

_FLAG = "--accelerator.cuda_graph"
_WARM_UP = 3
"""Steps before it is recorded: libraries choose their kernels and take their memory in these."""


def uses_cuda_graph(
    config: TrainConfig, network: Network, device: torch.device, distributed: DistributedContext
) -> bool:
    """Whether a training computes by a graph: where it can, unless told otherwise.

    Raises:
        UsageError: it is asked for and cannot be.
    """
    reasons = {
        "it is for CUDA devices": device.type != "cuda",
        f"{type(network).__name__} cannot be recorded": not network.recordable,
        "several processes train together": not distributed.is_single_process,
        "gradients are accumulated": config.accumulation > 1,
        "pictures are changed at random": config.dataset.image_transforms.enable,
        "the network is compiled": config.accelerator.compile.enabled,
    }
    asked = config.accelerator.cuda_graph
    why_not = next((reason for reason, holds in reasons.items() if holds), None)
    if asked and why_not is not None:
        raise UsageError(f"{_FLAG}=true: {why_not}", code="flag.conflict")
    return why_not is None and asked is not False


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
    """Computes losses and gradients; gradients of the step before are written over."""

    def __init__(
        self, compute: Compute, parameters: Sequence[nn.Parameter], device: torch.device
    ) -> None:
        self._compute, self._parameters = compute, parameters
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._before = _WARM_UP
        self._recorded: _Recorded | None = None

    def __call__(self, batch: Batch, draws: Batch) -> LossAndParts:
        """Return the loss and its parts of one batch.

        Raises:
            TrainingError: the network does what a graph cannot hold.
        """
        if self._recorded is None and self._before == 0:
            self._recorded = self._record(batch, draws)
        if self._recorded is None or not self._recorded.fits(batch, draws):
            self._before = max(0, self._before - 1)
            return self._at_once(batch, draws)
        recorded = self._recorded
        for held, given in ((recorded.batch, batch), (recorded.draws, draws)):
            for key, tensor in held.items():
                tensor.copy_(given[key], non_blocking=True)
        recorded.graph.replay()
        # The next replay writes over these.
        return recorded.loss.clone(), {name: v.clone() for name, v in recorded.parts.items()}

    def _at_once(self, batch: Batch, draws: Batch) -> LossAndParts:
        """Compute without a graph, on the stream that will be recorded."""
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
            parameter.grad = None  # the graph's own are made while it is recorded
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads go on copying batches while this one is recorded.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                loss, parts = self._compute(held, drawn)
        except RuntimeError as error:
            raise TrainingError(
                f"a step cannot be recorded as a CUDA graph: {summarize_traceback(str(error))}; "
                f"go on without: {_FLAG}=false",
                code="training.cuda-graph-failed",
            ) from error
        return _Recorded(graph, held, drawn, loss.detach(), parts)


def _shapes(tensors: Batch) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in tensors.items()}
