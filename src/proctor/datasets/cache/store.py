"""Stores of cached images: in shared memory, or in files that all processes share.

    frames.bin    the images; sparse where frames are not decoded yet
    sums.bin      a checksum of each image
    done.bin      one byte per episode: 1 when all its images are on the disk
    fill-*.lock   held while episodes are decoded, so that no other process decodes them too

Images are written by system calls, which report a full disk, and read through a memory mapping,
which copies each once. Pages are released regularly, as they would count as memory of this process.
A process compares each image with its checksum when it reads it for the first time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import zlib
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

_FRAMES, _SUMS, _DONE = "frames.bin", "sums.bin", "done.bin"
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
    def file_sizes(self) -> dict[str, int]:
        """Sizes in bytes of the files of an entry that hold the images and their checksums."""
        return {_FRAMES: max(1, self.frames * self.picture_bytes), _SUMS: max(1, 8 * self.frames)}

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.starts) - 1


class DamagedFrames(Exception):
    """Cached images are not those that were stored."""

    def __init__(self, is_damaged: Array) -> None:
        super().__init__()
        self.is_damaged = is_damaged
        """Whether each of the images asked for is damaged."""


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

    def unmark(self, episodes: Array) -> None:
        """Mark episodes as missing."""

    def take(self, positions: Array) -> Array:
        """Return the images at ``positions``.

        Raises:
            DamagedFrames: some are not those that were stored.
        """

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

    def unmark(self, episodes: Array) -> None:
        """Mark episodes as missing."""
        self._done[episodes] = False

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
    """Turn an OSError into a one-line error."""
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
        self._salt = np.uint64(zlib.crc32(entry.folder.name.encode()) | 1)
        sizes = layout.file_sizes
        with _one_line(entry.folder):
            self._frames, self._sums = (
                _opened(entry.folder / name, nbytes) for name, nbytes in sizes.items()
            )
            self._done = _opened(entry.folder / _DONE, 0)  # last: it says that the others are there
            self._map = mmap.mmap(self._frames, sizes[_FRAMES], mmap.MAP_SHARED, mmap.PROT_READ)
            self._sums_map = mmap.mmap(self._sums, sizes[_SUMS], mmap.MAP_SHARED, mmap.PROT_READ)
        self._mapped = layout.view(self._map)
        self._seen_bytes = 0
        self._is_proved = np.zeros(layout.frames, bool)
        """Images that this process compared with their checksums."""

    def is_done(self) -> Array:
        """Return whether each episode is complete."""
        return _said(os.pread(self._done, self._layout.episodes, 0), self._layout.episodes)

    def put(self, at: int, pictures: Array) -> None:
        """Store images from position ``at`` on."""
        sums = self._checksums(pictures, np.arange(at, at + len(pictures)))
        self._write(self._frames, pictures, at * self._layout.picture_bytes)
        self._write(self._sums, sums, at * sums.itemsize)

    def _write(self, fd: int, values: Array, offset: int) -> None:
        rest = memoryview(np.ascontiguousarray(values).data).cast("B")
        while rest:
            with _one_line(self._entry.folder):
                written = os.pwrite(fd, rest, offset)
            rest, offset = rest[written:], offset + written

    def _checksums(self, pictures: Array, positions: Array) -> Array:
        """Return a checksum of each image that differs in other places and in other entries."""
        flat = np.ascontiguousarray(pictures).reshape(len(pictures), -1).view(np.uint8)
        whole = flat.shape[1] // 8 * 8
        sums: Array = flat[:, :whole].view(np.uint64).sum(axis=1, dtype=np.uint64)
        sums += flat[:, whole:].sum(axis=1, dtype=np.uint64)
        sums += (positions.astype(np.uint64) + np.uint64(1)) * self._salt
        return sums

    def mark(self, episodes: Array) -> None:
        """Mark episodes as complete."""
        with _one_line(self._entry.folder):
            sync(self._frames)  # first, so that after a power cut done.bin never claims too much
            sync(self._sums)
            for episode in episodes.tolist():
                os.pwrite(self._done, b"\1", episode)

    def unmark(self, episodes: Array) -> None:
        """Mark episodes as missing."""
        with _one_line(self._entry.folder):
            for episode in episodes.tolist():
                os.pwrite(self._done, b"\0", episode)

    def take(self, positions: Array) -> Array:
        """Return the images at ``positions``.

        Raises:
            DamagedFrames: some do not match their checksums.
        """
        if os.fstat(self._frames).st_size < len(self._map):  # cut: reading would kill this process
            os.ftruncate(self._frames, len(self._map))
            self._is_proved[:] = False
        picked = self._mapped[positions]
        if not self._is_proved[positions].all():
            is_damaged = self._checksums(picked, positions) != self._stored_sums(positions)
            if is_damaged.any():
                raise DamagedFrames(is_damaged)
            self._is_proved[positions] = True
        self._seen_bytes += picked.nbytes
        if self._seen_bytes > _MAPPED_BYTES:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._seen_bytes = 0
        return picked

    def claim(self, stripe: int) -> Lock | None:
        """Lock a stripe for filling; return None if another process holds it."""
        with _one_line(self._entry.folder):
            return try_lock(self._entry.folder / f"fill-{stripe:02d}.lock")

    def _stored_sums(self, positions: Array) -> Array:
        if os.fstat(self._sums).st_size < len(self._sums_map):
            os.ftruncate(self._sums, len(self._sums_map))
        picked: Array = np.frombuffer(self._sums_map, np.uint64)[positions]
        return picked

    def close(self) -> None:
        """Release the store."""
        os.close(self._frames)
        os.close(self._sums)
        os.close(self._done)
        self._entry.lock.release()


def _opened(path: Path, nbytes: int) -> int:
    """Open a file of an entry; a new one gets ``nbytes`` zeros, which take no space."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    if os.fstat(fd).st_size < nbytes:
        os.ftruncate(fd, nbytes)
    return fd


def is_whole(folder: Path, layout: FrameLayout) -> bool:
    """Return whether the files of an entry have their sizes, if it holds images at all."""
    if not (folder / _DONE).exists():
        return True
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == nbytes
        for name, nbytes in layout.file_sizes.items()
    )


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
