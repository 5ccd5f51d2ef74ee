"""Shared memory for observations: one slot per worker, which the engine reads without messages.

The memory has no name (memfd, or an unlinked file), so nothing can leak or needs removal. It is
freed with the last process that maps it, however that process ends.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import Any

import numpy as np

from proctor.features import Array, Feature

_ALIGN = 64


class ObservationBuffer:
    """Observation windows, heartbeat counters and phases of ``n_slots`` workers.

    Picklable while a process is spawned: the child maps the same memory.
    """

    def __init__(
        self, n_slots: int, features: dict[str, Feature], n_obs_steps: int, fd: int | None = None
    ) -> None:
        self.n_slots = n_slots
        self.features = features
        self.n_obs_steps = n_obs_steps
        offsets, size = self._layout()
        self._fd = anonymous_file(size) if fd is None else fd
        self._memory = mmap.mmap(self._fd, size)
        self.beats = self._view(0, (n_slots,), "uint64")
        """Steps each slot's worker has ever taken: a sign of life."""
        self.phases = self._view(n_slots * 8, (n_slots,), "uint8")
        """Whose code each slot's worker runs: a ``Phase`` of ``benchmarks/guarded_sim``."""
        self.observations = {  # each [n_slots, n_obs_steps, ...]
            key: self._view(offsets[key], (n_slots, n_obs_steps, *feature.shape), feature.dtype)
            for key, feature in features.items()
        }

    def slot(self, index: int) -> dict[str, Array]:
        """Return the observation window of one slot, each array [n_obs_steps, ...]."""
        return {key: array[index] for key, array in self.observations.items()}

    def gather(self, slots: list[int]) -> dict[str, Array]:
        """Copy the windows of ``slots`` into batch arrays [B, n_obs_steps, ...]."""
        return {key: array[slots] for key, array in self.observations.items()}

    def fileno(self) -> int:
        """Return the descriptor of the memory."""
        return self._fd

    def close(self) -> None:
        """Release the memory; it is unmapped when the last array that views it is gone."""
        self.observations.clear()
        os.close(self._fd)

    def _layout(self) -> tuple[dict[str, int], int]:
        end = _aligned(self.n_slots * (8 + 1))  # a heartbeat and a phase each
        offsets = {}
        for key, feature in self.features.items():
            offsets[key] = end
            end = _aligned(end + self.n_slots * self.n_obs_steps * feature.nbytes)
        return offsets, end

    def _view(self, offset: int, shape: tuple[int, ...], dtype: str) -> Array:
        count = int(np.prod(shape))
        return np.frombuffer(self._memory, dtype, count, offset).reshape(shape)

    def __reduce__(self) -> tuple[Any, ...]:
        handle = reduction.DupFd(self._fd)  # type: ignore[attr-defined, unused-ignore]
        return _attach, (self.n_slots, self.features, self.n_obs_steps, handle)


def _attach(
    n_slots: int, features: dict[str, Feature], n_obs_steps: int, handle: Any
) -> ObservationBuffer:
    return ObservationBuffer(n_slots, features, n_obs_steps, handle.detach())


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def anonymous_file(size: int) -> int:
    """Return the descriptor of a file of ``size`` bytes that has no path."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("proctor-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        # Sealed: shrinking it would kill every process that maps it with SIGBUS.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
        os.ftruncate(fd, size)
    return fd
