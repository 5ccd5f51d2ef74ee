"""Where cached pictures are kept: in memory, or in two files that all processes share.

    frames.bin    the pictures; a hole where none was decoded yet
    done.bin      one byte an episode: 1 once all its pictures are on the disk
    fill-*.lock   held while some episodes are decoded, so that no other process does it too

Pictures are written by calls, which say when the disk is full, and read through a mapping, which
copies each once. What was looked at is let go of now and then: it would count as memory of ours.
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
"""What may be looked at before it is let go of."""
STRIPES = 64
"""Parts that may be filled at the same time."""


@dataclass(frozen=True)
class FrameLayout:
    """How many pictures there are, and of what shape."""

    shape: tuple[int, int, int]
    dtype: str
    starts: Array
    """Where each episode begins; the last is where all end."""

    @property
    def picture_bytes(self) -> int:
        """Bytes of one."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def view(self, whole: mmap.mmap) -> Array:
        """Return memory as pictures."""
        count = self.frames * int(np.prod(self.shape))
        return np.frombuffer(whole, self.dtype, count).reshape(-1, *self.shape)

    @property
    def frames(self) -> int:
        """How many there are."""
        return int(self.starts[-1])

    @property
    def episodes(self) -> int:
        """How many episodes they are of."""
        return len(self.starts) - 1


class Store(Protocol):
    """Where pictures are kept."""

    def close(self) -> None:
        """Let go of it."""

    def is_done(self) -> Array:
        """Whether each episode is complete; may grow while one looks."""

    def put(self, at: int, pictures: Array) -> None:
        """Keep pictures, the first as number ``at``."""

    def mark(self, episodes: Array) -> None:
        """Say that episodes are complete."""

    def take(self, positions: Array) -> Array:
        """Return pictures by number."""

    def claim(self, stripe: int) -> Lock | None:
        """Keep others from filling a part; None where one does."""


@dataclass(frozen=True)
class ProcessMemory:
    """Memory of a process that others can find while it lives: two of its open files."""

    process: int
    frames: int
    done: int


class RamStore:
    """Memory that this process, those forked from it and those it is handed to share.

    It is gone with the last of them. Only on Linux is it shared by those that were not forked.
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
        """Keep pictures, the first as number ``at``."""
        self._frames[at : at + len(pictures)] = pictures

    def mark(self, episodes: Array) -> None:
        """Say that episodes are complete."""
        self._done[episodes] = True

    def take(self, positions: Array) -> Array:
        """Return pictures by number."""
        return self._frames[positions]

    def claim(self, stripe: int) -> Lock | None:
        """Keep others from filling a part; None where one does."""
        if self._process != os.getpid():  # forked, perhaps while a thread held one
            self._begin()
        lock = self._locks[stripe]
        return lock if lock.acquire(blocking=False) else None

    def close(self) -> None:
        """Let go of it; the memory is free once nobody else has it."""
        if self.memory is not None and self.memory.process == os.getpid():
            os.close(self.memory.frames)
            os.close(self.memory.done)
            self.memory = None


def _shared(
    sizes: tuple[int, int], memory: ProcessMemory | None
) -> tuple[ProcessMemory | None, tuple[mmap.mmap, mmap.mmap]]:
    """Return memory of ``sizes``, that of another process if it is there still, and its name."""
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
    """Open the files of another process; none where it is gone and its number another's."""
    files = [Path(f"/proc/{memory.process}/fd/{fd}") for fd in (memory.frames, memory.done)]
    try:
        if all(str(file.readlink()).startswith(f"/memfd:{_NAME}") for file in files):
            return [os.open(file, os.O_RDWR) for file in files]
    except OSError:
        pass
    return []


@contextlib.contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    """Say in one line what the disk refused.

    Raises:
        DatasetError: it did.
    """
    try:
        yield
    except OSError as error:
        raise DatasetError(
            f"cannot write to the cache {folder} ({error.strerror}): what is there stays good; "
            "make room (proctor data cache --clear), or --dataset.cache=off",
            code="cache.not-writable",
        ) from None


class DiskStore:
    """Files that all processes share."""

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
        """Keep pictures, the first as number ``at``."""
        rest = memoryview(np.ascontiguousarray(pictures).data).cast("B")
        offset = at * self._layout.picture_bytes
        while rest:
            with _one_line(self._entry.folder):
                written = os.pwrite(self._frames, rest, offset)
            rest, offset = rest[written:], offset + written

    def mark(self, episodes: Array) -> None:
        """Say that episodes are complete."""
        with _one_line(self._entry.folder):
            sync(self._frames)  # first: after a power cut no byte may say more than there is
            for episode in episodes.tolist():
                os.pwrite(self._done, b"\1", episode)

    def take(self, positions: Array) -> Array:
        """Return pictures by number."""
        picked = self._mapped[positions]
        self._seen_bytes += picked.nbytes
        if self._seen_bytes > _MAPPED_BYTES:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._seen_bytes = 0
        return picked

    def claim(self, stripe: int) -> Lock | None:
        """Keep others from filling a part; None where one does."""
        with _one_line(self._entry.folder):
            return try_lock(self._entry.folder / f"fill-{stripe:02d}.lock")

    def close(self) -> None:
        """Let go of it."""
        os.close(self._frames)
        os.close(self._done)
        self._entry.lock.release()


def done_episodes(folder: Path, episodes: int) -> Array:
    """Return which episodes are complete in an entry, if there is one; whoever opens it looks."""
    try:
        return np.flatnonzero(_said(read_regular_file(folder / _DONE), episodes))
    except OSError:
        return np.empty(0, np.int64)


def _said(content: bytes, episodes: int) -> Array:
    done = np.zeros(episodes, bool)
    done[: len(content)] = np.frombuffer(content[:episodes], np.uint8) == 1
    return done
