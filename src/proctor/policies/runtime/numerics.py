"""Context managers for torch's process-wide numeric settings: TF32, cuDNN and oneDNN.

torch has one setting for the whole process. A context sets it for a call and restores it after.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


class _Shared:
    """Settings that stay active while at least one thread is inside the context."""

    def __init__(self, begin: Callable[[], Callable[[], None]]) -> None:
        self._begin = begin
        self._lock = threading.Lock()
        self._inside = 0
        self._undo: Callable[[], None]

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            if self._inside == 0:
                self._undo = self._begin()
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._undo()


def inference_numerics(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Return the context for inference on ``device``.

    Outside of it the process keeps its own settings: an evaluation during training must not change
    the training.
    """
    return (_ON_CUDA if device.type == "cuda" else _ELSEWHERE).held()


@contextlib.contextmanager
def training_numerics(device: torch.device, *, deterministic: bool) -> Iterator[None]:
    """Use TF32 and, unless ``deterministic``, cuDNN's benchmark mode.

    A process may run one training at a time in this context.
    """
    undo = _set(deterministic=deterministic) if device.type == "cuda" else None
    try:
        yield
    finally:
        if undo is not None:
            undo()


def step_numerics(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Return the context of one training step, so that all steps use the same settings."""
    return contextlib.nullcontext() if device.type == "cuda" else _ELSEWHERE.held()


def _set(*, deterministic: bool = True) -> Callable[[], None]:
    """Set the CUDA settings; return a function that restores the old ones."""
    cudnn, matmul = torch.backends.cudnn, _Products(torch.backends.cuda.matmul)
    before = cudnn.benchmark, cudnn.deterministic
    # Benchmark mode picks kernels by timing, so a result's bits would depend on the load.
    cudnn.benchmark, cudnn.deterministic = not deterministic, deterministic
    # TF32 in matrix products, as in convolutions and as in LeRobot's evaluation.
    matmul.round()

    def undo() -> None:
        cudnn.benchmark, cudnn.deterministic = before
        matmul.restore()

    return undo


def _keep() -> Callable[[], None]:
    """Return a function that restores whether oneDNN is enabled.

    torch disables oneDNN for the whole process at the first bfloat16 product on a CPU without
    bfloat16. Later results would then depend on earlier ones.
    """
    library: Any = torch.backends.mkldnn
    before = library.enabled
    return lambda: setattr(library, "enabled", before)


_ON_CUDA, _ELSEWHERE = _Shared(_set), _Shared(_keep)


class _Products:
    """The precision of matrix products, under torch's old name and, if present, its new one."""

    def __init__(self, matmul: Any) -> None:
        self._matmul = matmul
        self._new = getattr(matmul, "fp32_precision", None)
        try:
            self._old: bool | None = matmul.allow_tf32
        except RuntimeError:  # torch refuses to read the old name once the new one was set
            self._old = None

    def round(self) -> None:
        self._matmul.allow_tf32 = True

    def restore(self) -> None:
        if self._old is not None:
            self._matmul.allow_tf32 = self._old
        if self._new is not None:
            self._matmul.fp32_precision = self._new
