"""Run a network on a device: fixed batch sizes, CUDA graphs, transfers through pinned memory.

Kernels choose their order of summation by the batch size, so a row's last bits depend on how many
rows run with it. The runner splits every batch into pieces and pads each to one of a few sizes:

    CPU          always 1. Even one fixed size is not enough on a CPU: the scalar tail of a vector
                 loop falls on other rows than its body (docs/measurements.md)
    CUDA, MPS    1, 2, 3 ... 64, on CUDA with a graph for each; bits may differ between sizes
    strict       only ``pad_to``, so that results do not depend on the load
"""

from __future__ import annotations

import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proctor.errors import UsageError
from proctor.features import Array
from proctor.policies.runtime.numerics import inference_numerics

Forward = Callable[[dict[str, Tensor]], Tensor]
"""Device-side work: named rows on the device -> [B, ...] on the device."""

INDEX = re.compile("[0-9]{0,3}")
GRAPH_SIZES = (*range(1, 9), *range(10, 17, 2), *range(20, 33, 4), *range(40, 65, 8))
ROWS_PER_COPY = 4
_CAPTURE = threading.Lock()
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str) -> torch.device:
    """Return the device for ``cpu``, ``cuda``, ``cuda:1``, ``mps`` or ``auto`` (the fastest)."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or not INDEX.fullmatch(index):
        raise UsageError(
            f"--policy.device is {name!r} (choose cpu, cuda, mps, auto)",
            code="policy.unknown-device",
        )
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "--policy.device=cuda, but torch finds no CUDA device",
            code="policy.device-unavailable",
        )
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise UsageError(
            f"--policy.device={name}, but torch finds {torch.cuda.device_count()} CUDA devices",
            code="policy.device-unavailable",
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UsageError(
            "--policy.device=mps, but torch finds no Apple GPU",
            code="policy.device-unavailable",
        )
    return torch.device(name if kind == "cuda" else kind)


def device_or_fallback(name: str) -> tuple[torch.device, str | None]:
    """Return the device to evaluate on, and a note if it is not the requested one.

    As in LeRobot, a missing accelerator is replaced by the fastest device. The fingerprint holds
    the device that was used.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = name.partition(":")[0]
    if there.get(kind, True):
        return pick_device(name), None
    device = pick_device("auto")
    return device, f"torch finds no {kind} device: the policy runs on {device.type}"


def autocast(device: torch.device, *, wanted: bool) -> AbstractContextManager[Any]:
    """Return torch.autocast with the device's default dtype, or a null context.

    As in LeRobot, Apple GPUs use no autocast.
    """
    if not wanted or device.type == "mps":
        return nullcontext()
    if device.type == "cpu":  # torch warns once on a CPU without bfloat16
        warnings.filterwarnings("ignore", "mkldnn_matmul failed", UserWarning)
    return torch.autocast(device.type)


def pick_dtype(name: str | None) -> torch.dtype | None:
    """Return torch's dtype for a flag's value; None keeps the dtype of the weights."""
    if name is None:
        return None
    if name not in DTYPES:
        raise UsageError(
            f"--policy.dtype is {name!r} (choose {', '.join(DTYPES)})", code="policy.unknown-choice"
        )
    return DTYPES[name]


def numerics_record(
    device: torch.device, pad_to: int | None, *, amp: bool = False
) -> dict[str, Any]:
    """Return the settings and versions that affect the bits of a result, for the fingerprint.

    The models of CPU and GPU and the number of threads are in the run's record, not here.
    """
    with inference_numerics(device):
        float32 = _float32_precision(device)
    record: dict[str, Any] = {
        "torch": str(torch.__version__),
        "device": device.type,
        "float32": float32,
    }
    if amp and device.type != "mps":
        record["autocast"] = str(torch.get_autocast_dtype(device.type))
    if device.type != "cpu":  # a CPU runs row by row, whatever the size
        record["pad_to"] = pad_to
    if device.type == "cuda":
        record |= {
            "NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE"),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    return record


def _float32_precision(device: torch.device) -> dict[str, Any]:
    """Return the precision of float32 products and convolutions: ieee, tf32 or bf16."""
    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):  # before torch 2.9
        products = torch.get_float32_matmul_precision()
        return {"products": products, "convolutions_tf32": backends.cudnn.allow_tf32}
    # torch refuses to read the old names once the new ones were set.
    on_cuda = device.type == "cuda"
    places = {
        "products": backends.cuda.matmul if on_cuda else backends.mkldnn.matmul,
        "convolutions": backends.cudnn.conv if on_cuda else backends.mkldnn.conv,
    }
    said = {name: place.fp32_precision for name, place in places.items()}
    return {name: "ieee" if word == "none" else word for name, word in said.items()}


def make_runner(
    forward: Forward, device: torch.device, pad_to: int | None, *, supports_cuda_graph: bool = True
) -> Runner:
    """Return a runner of ``forward`` on ``device``; ``pad_to`` is an accelerator's only size.

    ``supports_cuda_graph``: whether a CUDA graph can capture ``forward``.
    """
    if device.type == "cuda" and supports_cuda_graph:
        return GraphRunner(forward, device, (pad_to,) if pad_to else GRAPH_SIZES)
    if device.type == "cpu":
        return Runner(forward, device, (1,))
    return Runner(forward, device, (pad_to,) if pad_to else GRAPH_SIZES)


class Runner:
    """Splits batches into pieces of fixed sizes and runs them one after the other."""

    def __init__(self, forward: Forward, device: torch.device, sizes: Sequence[int]) -> None:
        self.forward = forward
        self.device = device
        self.sizes = tuple(sorted(sizes))

    def __call__(self, rows: dict[str, Array]) -> Tensor:
        """Return forward(rows) as float32 on the CPU, row i for row i."""
        total = len(next(iter(rows.values())))
        done: list[Tensor] = []
        start = 0
        with inference_numerics(self.device):
            while start < total:
                size = self.size_for(total - start)
                piece = {key: value[start : start + size] for key, value in rows.items()}
                n = min(size, total - start)
                done.append(self.run_piece(piece, n, size))
                start += n
        return done[0] if len(done) == 1 else torch.cat(done)

    def warm_up(self, most: int, rows_of: Callable[[int], dict[str, Array]]) -> Iterator[None]:
        """Prepare for batches of up to ``most`` rows, one size per step.

        ``rows_of(size)`` returns example rows.
        """
        return iter(())

    def size_for(self, n: int) -> int:
        """Return the smallest size of at least ``n`` rows, or else the largest size."""
        return next((size for size in self.sizes if size >= n), self.sizes[-1])

    def run_piece(self, piece: dict[str, Array], n: int, size: int) -> Tensor:
        """Run ``n`` rows, padded to ``size`` with copies of the last one."""
        with torch.inference_mode():
            inputs = {
                key: torch.from_numpy(pad_rows(value, size)).to(self.device)
                for key, value in piece.items()
            }
            return self.forward(inputs)[:n].float().cpu()


def pad_rows(rows: Array, size: int) -> Array:
    """Repeat the last row up to ``size`` rows: real data, so never NaN."""
    if len(rows) < size:
        rows = np.concatenate([rows, np.repeat(rows[-1:], size - len(rows), axis=0)])
    # torch needs writable memory; observations in shared memory may be read-only.
    return np.require(rows, requirements=["C", "W"])


class GraphRunner(Runner):
    """Replays one CUDA graph per size, on its own stream, with inputs in pinned memory.

    Capturing a graph of a large network takes most of a second. A size without a graph uses the
    next larger graph until the padding has cost as much time as a capture.
    """

    def __init__(self, forward: Forward, device: torch.device, sizes: Sequence[int]) -> None:
        super().__init__(forward, device, sizes)
        self.stream = torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[tuple[int, ...], Graph] = {}
        self.lost_s: dict[tuple[int, ...], float] = {}

    def warm_up(self, most: int, rows_of: Callable[[int], dict[str, Array]]) -> Iterator[None]:
        """Capture the graphs: the largest size, its halves, then the sizes between."""
        for size in capture_order(self.sizes[: self.sizes.index(self.size_for(most)) + 1]):
            yield
            with inference_numerics(self.device):
                rows = rows_of(size)
                self.graphs[size, *row_shapes(rows)] = Graph(self, rows, size)

    def run_piece(self, piece: dict[str, Array], n: int, size: int) -> Tensor:
        """Replay the graph for ``size`` and these shapes, or a larger one."""
        key = (size, *row_shapes(piece))
        if key not in self.graphs:
            larger = min((k for k in self.graphs if k[0] > size and k[1:] == key[1:]), default=None)
            if larger is not None and self._still_does(self.graphs[larger], larger[0], key):
                return self.graphs[larger].replay(piece, n)
            self.graphs[key] = Graph(self, piece, size)
        return self.graphs[key].replay(piece, n)

    def _still_does(self, graph: Graph, size: int, wanted: tuple[int, ...]) -> bool:
        """Whether padding to a larger graph has cost less time so far than a capture."""
        lost_s = self.lost_s.get(wanted, 0.0) + graph.replay_s * (1 - wanted[0] / size)
        self.lost_s[wanted] = lost_s
        return lost_s < graph.capture_s


def row_shapes(rows: dict[str, Array]) -> tuple[int, ...]:
    """Return the concatenated shapes of all arrays, without the batch axis."""
    return tuple(length for values in rows.values() for length in values.shape[1:])


def capture_order(sizes: Sequence[int]) -> list[int]:
    """Return the sizes in order of capture: the largest, about half of it, and so on; the rest."""
    found = [max(sizes)]
    while found[-1] > min(sizes):
        found.append(max(size for size in sizes if size <= max(min(sizes), found[-1] // 2)))
    return [*found, *sorted({*sizes} - {*found}, reverse=True)]


class Graph:
    """One captured forward pass: copy inputs to the device, replay, copy the output back."""

    def __init__(self, runner: GraphRunner, piece: dict[str, Array], size: int) -> None:
        start = time.perf_counter()
        self.stream = runner.stream
        self.host: dict[str, Tensor] = {}
        self.inputs: dict[str, Tensor] = {}
        for key, rows in piece.items():
            like = torch.from_numpy(np.empty((0, *rows.shape[1:]), rows.dtype))
            self.host[key] = torch.zeros((size, *rows.shape[1:]), dtype=like.dtype, pin_memory=True)
            self.inputs[key] = torch.empty_like(self.host[key], device=runner.device)
        self.written = {key: host.numpy() for key, host in self.host.items()}  # the same memory
        # Copies of the weights may still be running.
        self.stream.wait_stream(torch.cuda.default_stream(runner.device))
        self._stage(piece, len(next(iter(piece.values()))))
        # One capture at a time. thread_local: other threads may use CUDA during the capture.
        with _CAPTURE, torch.inference_mode(), torch.cuda.stream(self.stream):
            for _ in range(3):  # libraries allocate their workspaces outside the graph
                runner.forward(dict(self.inputs))
            self.stream.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                self.graph,
                pool=runner.pool,
                stream=self.stream,
                capture_error_mode="thread_local",
            ):
                self.output = runner.forward(dict(self.inputs)).float()
            self.result = torch.empty_like(self.output, device="cpu", pin_memory=True)
        self.capture_s, self.replay_s = time.perf_counter() - start, 0.0

    def _stage(self, piece: dict[str, Array], n: int) -> None:
        """Write rows into pinned memory and start their copy to the device.

        A few rows at a time, so that the copy of one part overlaps with writing the next. NumPy
        writes with this thread alone. torch would use one thread per core and wait for all of
        them, while simulators hold the cores (20 ms instead of 2 for 8 images of 480x480).
        """
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            for key, rows in piece.items():
                host, device = self.host[key], self.inputs[key]
                for start in range(0, n, ROWS_PER_COPY):
                    part = slice(start, min(start + ROWS_PER_COPY, n))
                    np.copyto(self.written[key][part], rows[part])
                    device[part].copy_(host[part], non_blocking=True)
                if n < len(host):
                    device[n:].copy_(device[n - 1 : n].expand_as(device[n:]))

    def replay(self, piece: dict[str, Array], n: int) -> Tensor:
        """Return forward(piece) for its first ``n`` rows."""
        start = time.perf_counter()
        self._stage(piece, n)
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            self.graph.replay()
            self.result.copy_(self.output, non_blocking=True)
            self.stream.synchronize()
            self.replay_s = time.perf_counter() - start
            return self.result[:n].clone()
