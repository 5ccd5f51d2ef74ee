"""Running a network on a device: whole batches in pieces of fixed sizes, CUDA graphs, transfers.

Kernels choose their order of summation by the batch size, so a row's last bits depend on how many
rows ran with it. Here every batch is cut into pieces and each piece is filled up to one of a few
sizes:

    CPU          1, always. On a CPU even one fixed size is not enough: the scalar tail of a vector
                 loop falls on other rows than its body (docs/policies.md has the measurements)
    CUDA, MPS    1, 2, 3 ... 64, on CUDA a graph for each; bits may differ between sizes
    strict       ``pad_to`` alone, so that a result does not depend on the load
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
from proctor.policies.runtime.numerics import numerics_of

Forward = Callable[[dict[str, Tensor]], Tensor]
"""Device-side work: named rows on the device -> [B, ...] on the device."""

INDEX = re.compile("[0-9]{0,3}")
GRAPH_SIZES = (*range(1, 9), *range(10, 17, 2), *range(20, 33, 4), *range(40, 65, 8))
WRITTEN_AT_ONCE = 4
_CAPTURE = threading.Lock()
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str) -> torch.device:
    """Return the device for ``cpu``, ``cuda``, ``cuda:1``, ``mps`` or ``auto`` (the best there is).

    Raises:
        UsageError: no such device here.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or not INDEX.fullmatch(index):
        raise UsageError(f"--policy.device is {name!r} (choose cpu, cuda, mps, auto)")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError("--policy.device=cuda, but torch sees no CUDA device here")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise UsageError(f"--policy.device={name}, but there are {torch.cuda.device_count()}")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UsageError("--policy.device=mps, but torch sees no Apple GPU here")
    return torch.device(name if kind == "cuda" else kind)


def device_for(name: str) -> tuple[torch.device, str | None]:
    """Return the device to evaluate on, and what is to be said of it.

    As LeRobot does, an accelerator that is not there is replaced by the best there is; what ran
    where stands in the fingerprint.

    Raises:
        UsageError: there is no device of that name anywhere, or not as many.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = name.partition(":")[0]
    if there.get(kind, True):
        return pick_device(name), None
    device = pick_device("auto")
    return device, f"torch sees no {kind} device here: the policy runs on {device.type}"


def autocast(device: torch.device, *, wanted: bool) -> AbstractContextManager[Any]:
    """Return mixed precision as torch chooses it for a device, or what leaves everything alone.

    As in LeRobot there is none on Apple's GPUs.
    """
    if not wanted or device.type == "mps":
        return nullcontext()
    if device.type == "cpu":  # it says so once on a CPU without bfloat16, with a stack
        warnings.filterwarnings("ignore", "mkldnn_matmul failed", UserWarning)
    return torch.autocast(device.type)


def pick_dtype(name: str | None) -> torch.dtype | None:
    """Return torch's dtype for a flag's value; None: whatever the weights have.

    Raises:
        UsageError: not one of ours.
    """
    if name is None:
        return None
    if name not in DTYPES:
        raise UsageError(f"--policy.dtype is {name!r} (choose {', '.join(DTYPES)})")
    return DTYPES[name]


def numerics(device: torch.device, pad_to: int | None, *, amp: bool = False) -> dict[str, Any]:
    """Return what else decides the bits of a result, as far as it was chosen or installed.

    Which model of processor or GPU it is and how many threads there are is the machine's: a run's
    record has that beside its fingerprint.
    """
    with numerics_of(device):
        float32 = _float32_precision(device)
    told: dict[str, Any] = {
        "torch": str(torch.__version__),
        "device": device.type,
        "float32": float32,
    }
    if amp and device.type != "mps":
        told["autocast"] = str(torch.get_autocast_dtype(device.type))
    if device.type != "cpu":  # a CPU runs row by row, whatever the size
        told["pad_to"] = pad_to
    if device.type == "cuda":
        told |= {
            "NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE"),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    return told


def _float32_precision(device: torch.device) -> dict[str, Any]:
    """Return what float32 is inside products and convolutions: itself, TF32 or bfloat16."""
    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):  # before torch 2.9
        products = torch.get_float32_matmul_precision()
        return {"products": products, "convolutions_tf32": backends.cudnn.allow_tf32}
    # The older names raise where somebody has set the newer ones.
    on_cuda = device.type == "cuda"
    places = {
        "products": backends.cuda.matmul if on_cuda else backends.mkldnn.matmul,
        "convolutions": backends.cudnn.conv if on_cuda else backends.mkldnn.conv,
    }
    said = {name: place.fp32_precision for name, place in places.items()}
    return {name: "ieee" if word == "none" else word for name, word in said.items()}


def make_runner(
    forward: Forward, device: torch.device, pad_to: int | None, *, graphed: bool = True
) -> Runner:
    """Return what runs ``forward`` on ``device``; with ``pad_to`` an accelerator has one size.

    ``graphed``: whether a CUDA graph can hold it.
    """
    if device.type == "cuda" and graphed:
        return GraphRunner(forward, device, (pad_to,) if pad_to else GRAPH_SIZES)
    if device.type == "cpu":
        return Runner(forward, device, (1,))
    return Runner(forward, device, (pad_to,) if pad_to else GRAPH_SIZES)


class Runner:
    """Cuts batches into pieces of fixed sizes and runs them one after the other."""

    def __init__(self, forward: Forward, device: torch.device, sizes: Sequence[int]) -> None:
        self.forward = forward
        self.device = device
        self.sizes = tuple(sorted(sizes))

    def __call__(self, rows: dict[str, Array]) -> Tensor:
        """Return forward(rows) as float32 on the CPU, row i for row i."""
        total = len(next(iter(rows.values())))
        done: list[Tensor] = []
        start = 0
        with numerics_of(self.device):
            while start < total:
                size = self.size_for(total - start)
                piece = {key: value[start : start + size] for key, value in rows.items()}
                n = min(size, total - start)
                done.append(self.run_piece(piece, n, size))
                start += n
        return done[0] if len(done) == 1 else torch.cat(done)

    def warm_up(self, most: int, rows_of: Callable[[int], dict[str, Array]]) -> Iterator[None]:
        """Prepare for batches of up to ``most`` rows, size by size; ``rows_of`` makes any rows."""
        return iter(())

    def size_for(self, n: int) -> int:
        """Return the smallest size that takes ``n`` rows, or the largest there is."""
        return next((size for size in self.sizes if size >= n), self.sizes[-1])

    def run_piece(self, piece: dict[str, Array], n: int, size: int) -> Tensor:
        """Run ``n`` rows, filled up to ``size`` with copies of the last one."""
        with torch.inference_mode():
            inputs = {
                key: torch.from_numpy(fill_up(value, size)).to(self.device)
                for key, value in piece.items()
            }
            return self.forward(inputs)[:n].float().cpu()


def fill_up(rows: Array, size: int) -> Array:
    """Return ``rows`` with its last row repeated up to ``size`` rows: real data, so never NaN."""
    if len(rows) < size:
        rows = np.concatenate([rows, np.repeat(rows[-1:], size - len(rows), axis=0)])
    # torch wants writable memory; observations in shared memory may not be.
    return np.require(rows, requirements=["C", "W"])


class GraphRunner(Runner):
    """Replays one CUDA graph per size, on a stream of its own, fed through pinned memory.

    A graph of a large network takes most of a second to capture. So a size that has none yet is run
    by the next larger graph there is, until it has lost as much by that as its own one takes.
    """

    def __init__(self, forward: Forward, device: torch.device, sizes: Sequence[int]) -> None:
        super().__init__(forward, device, sizes)
        self.stream = torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[tuple[int, ...], Graph] = {}
        self.lost_s: dict[tuple[int, ...], float] = {}

    def warm_up(self, most: int, rows_of: Callable[[int], dict[str, Array]]) -> Iterator[None]:
        """Capture the graphs: the largest, its halves, then those between."""
        for size in by_halves(self.sizes[: self.sizes.index(self.size_for(most)) + 1]):
            yield
            with numerics_of(self.device):
                rows = rows_of(size)
                self.graphs[size, *shape_of(rows)] = Graph(self, rows, size)

    def run_piece(self, piece: dict[str, Array], n: int, size: int) -> Tensor:
        """Replay the graph of ``size`` and of these shapes, or a larger one."""
        key = (size, *shape_of(piece))
        if key not in self.graphs:
            larger = min((k for k in self.graphs if k[0] > size and k[1:] == key[1:]), default=None)
            if larger is not None and self._still_does(self.graphs[larger], larger[0], key):
                return self.graphs[larger].replay(piece, n)
            self.graphs[key] = Graph(self, piece, size)
        return self.graphs[key].replay(piece, n)

    def _still_does(self, graph: Graph, size: int, wanted: tuple[int, ...]) -> bool:
        """Return whether a larger graph has cost less than capturing the one that is wanted."""
        lost_s = self.lost_s.get(wanted, 0.0) + graph.replay_s * (1 - wanted[0] / size)
        self.lost_s[wanted] = lost_s
        return lost_s < graph.capture_s


def shape_of(rows: dict[str, Array]) -> tuple[int, ...]:
    """Return all lengths of rows, one after the other, but for how many there are."""
    return tuple(length for values in rows.values() for length in values.shape[1:])


def by_halves(sizes: Sequence[int]) -> list[int]:
    """Return sizes, the largest first, then about its half, and so on; then the rest."""
    found = [max(sizes)]
    while found[-1] > min(sizes):
        found.append(max(size for size in sizes if size <= max(min(sizes), found[-1] // 2)))
    return [*found, *sorted({*sizes} - {*found}, reverse=True)]


class Graph:
    """One captured forward: fixed memory on both sides, one copy in, one replay, one copy out."""

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
        # Weights may be in flight.
        self.stream.wait_stream(torch.cuda.default_stream(runner.device))
        self._stage(piece, len(next(iter(piece.values()))))
        # One capture at a time, and no business of other threads: a replica may run meanwhile.
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

        A few rows at a time, so that one part is on its way while the next is written; and by this
        thread alone: torch writes with a thread for each core, and waits for all of them, which
        wait for cores while simulators have these (20 ms instead of 2 for 8 images of 480x480).
        """
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            for key, rows in piece.items():
                host, device = self.host[key], self.inputs[key]
                for start in range(0, n, WRITTEN_AT_ONCE):
                    part = slice(start, min(start + WRITTEN_AT_ONCE, n))
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
