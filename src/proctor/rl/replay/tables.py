"""Tables of a replay buffer: rows in memory, or in a mapped file when they are large."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO

import numpy as np
import torch

from proctor.errors import RunFolderError
from proctor.rl.replay.schema import Shape

MAPPED_ABOVE_BYTES = 4 * 2**30
"""Image tables of a buffer that need more than this lie in mapped files; the kernel pages them."""
_GROWTH_BYTES = 64 * 2**20


class Table:
    """Rows of one shape; ``rows`` is the torch view of all of them.

    Memory of rows that were never written is not committed by the operating system.
    """

    def __init__(self, n: int, shape: Shape, dtype: str, device: str = "cpu") -> None:
        if device == "cpu":
            self.rows = torch.from_numpy(np.zeros((n, *shape), dtype))
        else:
            self.rows = torch.zeros((n, *shape), dtype=getattr(torch, dtype), device=device)

    def write(self, row: int, value: np.ndarray) -> None:
        """Store ``value`` in a row."""
        # The GPU is not waited for: CUDA copies pageable memory before it returns.
        self.rows[row].copy_(torch.from_numpy(np.ascontiguousarray(value)), non_blocking=True)


class MappedTable(Table):
    """Rows in a temporary file, which disappears with the process.

    Disk space is reserved before rows are written: a full disk raises an error here, and not a
    signal when the kernel writes the page.
    """

    def __init__(self, n: int, shape: Shape, dtype: str, folder: Path | None) -> None:
        self._row_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._folder = folder or Path(tempfile.gettempdir())
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=self._folder, prefix="replay-")  # noqa: SIM115
        self._total = n * self._row_bytes
        self._file.truncate(self._total)
        self._reserved = 0
        mapped = np.memmap(self._file, dtype, "r+", shape=(n, *shape))
        self.rows = torch.from_numpy(mapped)

    def write(self, row: int, value: np.ndarray) -> None:
        """Store ``value`` in a row."""
        end = (row + 1) * self._row_bytes
        if end > self._reserved:
            self._reserve(end)
        super().write(row, value)

    def _reserve(self, end: int) -> None:
        wanted = min(self._total, end + _GROWTH_BYTES)
        try:
            os.posix_fallocate(self._file.fileno(), self._reserved, wanted - self._reserved)
        except OSError as error:
            raise RunFolderError(
                f"{self._folder}: no space for the replay buffer ({error.strerror}); free "
                f"{(self._total - self._reserved) / 2**30:.1f} GiB or use a smaller buffer",
                code="rl.buffer-disk-full",
            ) from error
        self._reserved = wanted
