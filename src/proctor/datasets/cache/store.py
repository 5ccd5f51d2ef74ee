"""Stores of cached images: in shared memory, or in files that all processes share.

    frames.bin    the images; sparse where frames are not decoded yet
    done.bin      one byte per episode: 1 when all its images are on the disk
    fill-*.lock   held while episodes are decoded, so that no other process decodes them too

Images are written by system calls, which report a full disk, and read through a memory mapping,
which copies each once. Pages are released regularly, as they would count as memory of this process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from proctor.datasets.cache.folder import CacheEntryHandle
from proctor.errors import DatasetError
from proctor.features import Array
from proctor.system.files import read_regular_file, sync
from proctor.system.locks import Lock, try_lock

_FRAMES, _DONE = "frames.bin", "done.bin"
_NAME = "proctor-frames"
_MAPPED_BYTES = 256 * 2**20
"""Bytes that are read before mapped pages are released."""
STRIPES = 64
"""Stripes that can be filled in parallel."""


@dataclass(frozen=True)
class FrameLayout:
    """The number, shape and order of cached images."""

    shape: tuple[int, int, int]
    dtype: str
    starts: Array
    """First image of each episode; the last value is the total."""

    @property
    def picture_bytes(self) -> int:
        """Bytes of one image."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def view(self, whole: mmap.mmap) -> Array:
        """Return mapped memory as an array of images."""
        count = self.frames * int(np.prod(self.shape))
        return np.frombuffer(whole, self.dtype, count).reshape(-1, *self.shape)

    @property
    def frames(self) -> int:
        """Number of images."""
        return int(self.starts[-1])

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.starts) - 1


class Store(Protocol):
    """A store of cached images."""

    def close(self) -> None:
        """Release the store."""

    def is_done(self) -> Array:
        """Return whether each episode is complete; other processes may complete more."""

    def put(self, at: int, pictures: Array) -> None:
        """Store images from position ``at`` on."""

    def mark(self, episodes: Array) -> None:
        """Mark episodes as complete."""

    def take(self, positions: Array) -> Array:
        """Return the images at ``positions``."""

    def claim(self, stripe: int) -> Lock | None:
        """Lock a stripe for filling; return None if another process holds it."""


@dataclass(frozen=True)
class ProcessMemory:
    """Shared memory of a process, which others open through its two file descriptors."""

    process: int
    frames: int
    done: int


class RamStore:
    """Shared memory of this process, its forks, and processes that unpickle it.

    It is freed with the last of them. Processes that are not forks share it only on Linux.
    """

    def __init__(self, layout: FrameLayout, memory: ProcessMemory | None = None) -> None:
        sizes = max(1, layout.frames * layout.picture_bytes), max(1, layout.episodes)
        self.memory, (frames, done) = _shared(sizes, memory)
        self._frames = layout.view(frames)
        self._done = np.frombuffer(done, bool, layout.episodes)
        self._begin()

    def _begin(self) -> None:
        self._process, self._locks = os.getpid(), [threading.Lock() for _ in range(STRIPES)]

    def is_done(self) -> Array:
        """Return whether each episode is complete."""
        return self._done

    def put(self, at: int, pictures: Array) -> None:
        """Store images from position ``at`` on."""
        self._frames[at : at + len(pictures)] = pictures

    def mark(self, episodes: Array) -> None:
        """Mark episodes as complete."""
        self._done[episodes] = True

    def take(self, positions: Array) -> Array:
        """Return the images at ``positions``."""
        return self._frames[positions]

    def view(self, start: int, stop: int) -> Array:
        """Return the images from ``start`` to ``stop`` without copying them."""
        return self._frames[start:stop]

    def claim(self, stripe: int) -> Lock | None:
        """Lock a stripe for filling; return None if another process holds it."""
        if self._process != os.getpid():  # forked, perhaps while a thread held a lock
            self._begin()
        lock = self._locks[stripe]
        return lock if lock.acquire(blocking=False) else None

    def close(self) -> None:
        """Release the memory, which is freed when no process uses it."""
        if self.memory is not None and self.memory.process == os.getpid():
            os.close(self.memory.frames)
            os.close(self.memory.done)
            self.memory = None


def _shared(
    sizes: tuple[int, int], memory: ProcessMemory | None
) -> tuple[ProcessMemory | None, tuple[mmap.mmap, mmap.mmap]]:
    """Return memory of ``sizes``, from another process if it still exists, and its handle."""
    if not hasattr(os, "memfd_create"):
        return None, (mmap.mmap(-1, sizes[0]), mmap.mmap(-1, sizes[1]))
    files = [] if memory is None else _found(memory)
    if [os.fstat(fd).st_size for fd in files] != list(sizes):
        files = [os.memfd_create(_NAME) for _ in sizes]
        for fd, size in zip(files, sizes, strict=True):
            os.ftruncate(fd, size)
    maps = mmap.mmap(files[0], sizes[0]), mmap.mmap(files[1], sizes[1])
    return ProcessMemory(os.getpid(), files[0], files[1]), maps


def _found(memory: ProcessMemory) -> list[int]:
    """Open the files of another process; empty if it has ended."""
    files = [Path(f"/proc/{memory.process}/fd/{fd}") for fd in (memory.frames, memory.done)]
    try:
        if all(str(file.readlink()).startswith(f"/memfd:{_NAME}") for file in files):
            return [os.open(file, os.O_RDWR) for file in files]
    except OSError:
        pass
    return []


@contextlib.contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    """Turn an OSError into a one-line error.

    Raises:
        DatasetError: the cache cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise DatasetError(
            f"cannot write to the cache {folder} ({error.strerror}): its content stays valid; "
            "free space (proctor data cache --clear), or --dataset.cache=off",
            code="cache.not-writable",
        ) from None


class DiskStore:
    """Images in files that all processes share."""

    def __init__(self, layout: FrameLayout, entry: CacheEntryHandle) -> None:
        self._layout, self._entry = layout, entry
        nbytes = max(1, layout.frames * layout.picture_bytes)
        with _one_line(entry.folder):
            self._frames = os.open(entry.folder / _FRAMES, os.O_RDWR | os.O_CREAT, 0o644)
            self._done = os.open(entry.folder / _DONE, os.O_RDWR | os.O_CREAT, 0o644)
            if os.fstat(self._frames).st_size < nbytes:
                os.ftruncate(self._frames, nbytes)
            self._map = mmap.mmap(self._frames, nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
        self._mapped = layout.view(self._map)
        self._seen_bytes = 0

    def is_done(self) -> Array:
        """Return whether each episode is complete."""
        return _said(os.pread(self._done, self._layout.episodes, 0), self._layout.episodes)

    def put(self, at: int, pictures: Array) -> None:
        """Store images from position ``at`` on."""
        rest = memoryview(np.ascontiguousarray(pictures).data).cast("B")
        offset = at * self._layout.picture_bytes
        while rest:
            with _one_line(self._entry.folder):
                written = os.pwrite(self._frames, rest, offset)
            rest, offset = rest[written:], offset + written

    def mark(self, episodes: Array) -> None:
        """Mark episodes as complete."""
        with _one_line(self._entry.folder):
            sync(self._frames)  # first, so that after a power cut done.bin never claims too much
            for episode in episodes.tolist():
                os.pwrite(self._done, b"\1", episode)

    def take(self, positions: Array) -> Array:
        """Return the images at ``positions``."""
        picked = self._mapped[positions]
        self._seen_bytes += picked.nbytes
        if self._seen_bytes > _MAPPED_BYTES:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._seen_bytes = 0
        return picked

    def claim(self, stripe: int) -> Lock | None:
        """Lock a stripe for filling; return None if another process holds it."""
        with _one_line(self._entry.folder):
            return try_lock(self._entry.folder / f"fill-{stripe:02d}.lock")

    def close(self) -> None:
        """Release the store."""
        os.close(self._frames)
        os.close(self._done)
        self._entry.lock.release()


def done_episodes(folder: Path, episodes: int) -> Array:
    """Return which episodes of an entry are complete; all False if it does not exist."""
    try:
        return np.flatnonzero(_said(read_regular_file(folder / _DONE), episodes))
    except OSError:
        return np.empty(0, np.int64)


def _said(content: bytes, episodes: int) -> Array:
    done = np.zeros(episodes, bool)
    done[: len(content)] = np.frombuffer(content[:episodes], np.uint8) == 1
    return done
