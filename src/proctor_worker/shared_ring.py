"""Shared memory for large arrays: one side writes, the other side reads."""

import mmap
from typing import TYPE_CHECKING, Any, Optional

from proctor_worker.frames import FrameError

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

SHARED_FROM = 2**14
"""Bytes from which an array goes through shared memory."""
_COUNTERS = 2
"""Numbers at the start of the shared memory, uint64: how many bytes the reader has consumed, and
how many steps the writer has begun."""
_HEAD = 8 * _COUNTERS


class SharedRing:
    """Shared memory that one side writes arrays to and the other side reads them from.

    Both sides map the same memory. The writer appends; the reader adds to the counter what it has
    read. An array that finds no room goes through the channel instead.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._memory = mmap.mmap(descriptor, size)
        self._consumed = np.frombuffer(self._memory, np.uint64, 1)
        self.steps_begun = np.frombuffer(self._memory, np.uint64, 1, 8)
        """Steps that the writer has begun, [1]: known to the reader also after a crash."""
        self._bytes = np.frombuffer(self._memory, np.uint8, size - _HEAD, _HEAD)
        self._written = 0

    def put(self, array: "np.ndarray[Any, Any]") -> Optional[int]:
        """Copy an array into the memory; return its position, None without room."""
        size, capacity = array.nbytes, self._bytes.size
        at = self._written % capacity
        skipped = capacity - at if at + size > capacity else 0
        if size > capacity or self._written + skipped + size - int(self._consumed[0]) > capacity:
            return None
        self._written += skipped
        at = self._written % capacity
        self._bytes[at : at + size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._written += size
        return self._written - size

    def take(self, position: int, size: int) -> "np.ndarray[Any, Any]":
        """Return a copy of ``size`` bytes at ``position``, and free them for the writer.

        Raises:
            FrameError: the position lies outside the memory.
        """
        at = position % self._bytes.size
        if position >= 2**62 or at + size > self._bytes.size:
            raise FrameError("an array lies outside the shared memory")
        taken = self._bytes[at : at + size].copy()
        self._consumed[0] = position + size
        return taken
