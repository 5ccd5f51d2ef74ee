"""A whole SAC update as one CUDA graph, so that the GPU does not wait for Python.

An update of these networks launches hundreds of kernels of a few microseconds. A recorded graph
launches them at once. Batches and random numbers are copied to the graph's own memory before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from proctor.errors import TrainingError, summarize_traceback
from proctor.rl.algorithms.sac_draws import SacDraws
from proctor.rl.transitions import TransitionBatch

Metrics = dict[str, Tensor]
Compute = Callable[[list[TransitionBatch], SacDraws], Metrics]
"""Makes one update; every call with inputs of the same shapes launches the same kernels."""

_WARM_UP = 3
"""Updates before recording, in which libraries select kernels and allocate memory."""
_MOST_GRAPHS = 4
"""Graphs kept. Batches grow while a replay buffer is small; such updates run without a graph."""


@dataclass(frozen=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    metrics: Metrics


class GraphedUpdate:
    """Runs updates by CUDA graphs, one for each set of input shapes."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._seen: dict[object, int] = {}
        self._recorded: dict[object, _Recorded] = {}

    def __call__(
        self, compute: Compute, batches: list[TransitionBatch], draws: SacDraws
    ) -> Metrics:
        """Make one update. Its metrics are overwritten by the next one."""
        inputs = _tensors(batches, draws)
        key = tuple(tensor.shape for tensor in inputs)
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        if key not in self._recorded:
            if seen <= _WARM_UP or len(self._recorded) == _MOST_GRAPHS:
                return self._without_graph(compute, batches, draws)
            self._recorded[key] = self._record(compute, batches, draws)
        recorded = self._recorded[key]
        torch._foreach_copy_(recorded.inputs, inputs)
        recorded.graph.replay()
        return recorded.metrics

    def _without_graph(
        self, compute: Compute, batches: list[TransitionBatch], draws: SacDraws
    ) -> Metrics:
        """Update without a graph, on the stream that is recorded later."""
        around = torch.cuda.current_stream()
        self._stream.wait_stream(around)
        with torch.cuda.stream(self._stream):
            metrics = compute(batches, draws)
        around.wait_stream(self._stream)
        return metrics

    def _record(
        self, compute: Compute, batches: list[TransitionBatch], draws: SacDraws
    ) -> _Recorded:
        held = [_cloned(batch) for batch in batches]
        drawn = draws.cloned()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads copy batches during recording.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                metrics = compute(held, drawn)
        except RuntimeError as error:
            raise TrainingError(
                f"cannot record an update as a CUDA graph: {summarize_traceback(str(error))}; "
                "disable it with --algorithm.cuda_graphs=false",
                code="training.cuda-graph-failed",
            ) from error
        return _Recorded(graph, _tensors(held, drawn), metrics)


def _tensors(batches: list[TransitionBatch], draws: SacDraws) -> list[Tensor]:
    found: list[Tensor] = []
    for batch in batches:
        found += [batch.action, batch.reward, batch.done]
        for part in (batch.observation, batch.next_observation, batch.complementary_info):
            found += [part[key] for key in sorted(part)]
    return found + [tensor for tensor in draws.parts() if tensor is not None]


def _cloned(batch: TransitionBatch) -> TransitionBatch:
    def clones(part: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: tensor.clone() for key, tensor in part.items()}

    return replace(
        batch,
        observation=clones(batch.observation),
        action=batch.action.clone(),
        reward=batch.reward.clone(),
        next_observation=clones(batch.next_observation),
        done=batch.done.clone(),
        complementary_info=clones(batch.complementary_info),
    )
