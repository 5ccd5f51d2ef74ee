"""How a policy computes, for the time of a call: torch keeps it for the whole process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


class _Shared:
    """Settings that hold while at least one caller is inside, on whatever thread."""

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


def numerics_of(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Return the context that calls into a policy on ``device`` are made in.

    Outside it everything is as the process has set it: an evaluation inside a training must not
    change the training.
    """
    return (_ON_CUDA if device.type == "cuda" else _ELSEWHERE).held()


@contextlib.contextmanager
def training_numerics(device: torch.device, *, deterministic: bool) -> Iterator[None]:
    """Compute as trainings do inside: with TF32 and, unless ``deterministic``, the fastest kernels.

    For the one training of a process, and nothing beside it.
    """
    undo = _set(deterministic=deterministic) if device.type == "cuda" else None
    try:
        yield
    finally:
        if undo is not None:
            undo()


def step_numerics(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Return the context of a training's step: what it computes with is the same for every step."""
    return contextlib.nullcontext() if device.type == "cuda" else _ELSEWHERE.held()


def _set(*, deterministic: bool = True) -> Callable[[], None]:
    """Set how a GPU computes; return what restores the settings that were there."""
    cudnn, matmul = torch.backends.cudnn, _Products(torch.backends.cuda.matmul)
    before = cudnn.benchmark, cudnn.deterministic
    # Timed algorithm choice would let the load of the moment pick the bits of a result.
    cudnn.benchmark, cudnn.deterministic = not deterministic, deterministic
    # Products round their factors as convolutions already do, and as in LeRobot's evaluation.
    matmul.round()

    def undo() -> None:
        cudnn.benchmark, cudnn.deterministic = before
        matmul.restore()

    return undo


def _keep() -> Callable[[], None]:
    """Return what switches a CPU's library on again, where torch switches it off in a call.

    It does for the whole process, at the first product in bfloat16 on a CPU without: bits of what
    is computed later would depend on what was computed before.
    """
    library: Any = torch.backends.mkldnn
    before = library.enabled
    return lambda: setattr(library, "enabled", before)


_ON_CUDA, _ELSEWHERE = _Shared(_set), _Shared(_keep)


class _Products:
    """The precision of products, under its older name and, where there is one, its newer."""

    def __init__(self, matmul: Any) -> None:
        self._matmul = matmul
        self._new = getattr(matmul, "fp32_precision", None)
        try:
            self._old: bool | None = matmul.allow_tf32
        except RuntimeError:  # the older name cannot be read where the newer was set by itself
            self._old = None

    def round(self) -> None:
        self._matmul.allow_tf32 = True

    def restore(self) -> None:
        if self._old is not None:
            self._matmul.allow_tf32 = self._old
        if self._new is not None:
            self._matmul.fp32_precision = self._new
