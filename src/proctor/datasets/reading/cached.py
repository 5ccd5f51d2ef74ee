"""The frame cache: frames are decoded once, in order, and read from memory or disk afterwards.

A cache entry holds the uncompressed images of one camera at one size, in the order of the episodes
table: frame f of episode e starts at byte ``(starts[e] + f) * bytes per image``. An entry's key
hashes everything that the images depend on, so a changed dataset never reads stale images.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.cache.folder import CacheEntryInfo, file_identity, open_entry
from proctor.datasets.cache.store import (
    STRIPES,
    DamagedFrames,
    DiskStore,
    FrameLayout,
    ProcessMemory,
    RamStore,
    Store,
    done_episodes,
    is_whole,
)
from proctor.datasets.cache_settings import GB, FrameCacheSettings
from proctor.datasets.frames.decoder import Pixels
from proctor.datasets.reading.cache_filler import running_fillers
from proctor.datasets.reading.frame_source import FrameSource, TableSource
from proctor.errors import DatasetError
from proctor.features import Array
from proctor.system.platform.platform_info import usable_cores, usable_memory_bytes

_SHARD_BYTES = 32 * 2**20
"""Images decoded before the work of other processes is checked again."""
_WAIT_S = 0.02
_MOST_READS = 3
"""Attempts to read images that are damaged."""
_AT_ONCE, _CORES_OF_A_SHARD = 2, 4
"""Least number of shards filled in parallel, and cores per shard on large machines."""
_WORTH_PROCESSES, _FRAMES_WORTH_PROCESSES = 4, 4000
"""Least numbers of processes and of images in data files that are worth starting processes."""


@dataclass(frozen=True)
class CachedEpisodes:
    """The dataset's name, for messages, and the episodes to cache."""

    dataset: str
    episodes: Array
    """Rows of the episodes table."""


def with_cache(
    sources: Mapping[str, FrameSource], settings: FrameCacheSettings, kept: CachedEpisodes
) -> dict[str, FrameSource]:
    """Wrap each camera in a cache, by ``settings``."""
    if not settings.is_on:
        return dict(sources)
    planned = sum(_planned(source, kept) for source in sources.values())
    most, said = settings.most_bytes, "--dataset.cache_gb allows"
    if settings.is_decoded_into_ram and usable_memory_bytes() < most:
        most, said = usable_memory_bytes(), "this machine has"
    if planned > most:
        shapes = {source.shape for source in sources.values()}
        sizes = ", ".join(sorted(f"{width}x{height}" for height, width, _ in shapes))
        raise DatasetError(
            f"the frames of {kept.dataset} need {planned / GB:.1f} GB at {sizes}, {said} "
            f"{most / GB:.1f} GB: use fewer episodes or smaller images, or --dataset.cache=off",
            code="cache.too-small",
        )
    return {
        camera: CachedSource(source, settings, kept, camera) for camera, source in sources.items()
    }


def _planned(source: FrameSource, kept: CachedEpisodes) -> int:
    frames = int(source.lengths[kept.episodes].sum())
    return frames * int(np.prod(source.shape)) * np.dtype(source.pixels.dtype).itemsize


class CachedSource:
    """A FrameSource that decodes the images of another one once and caches them."""

    def __init__(
        self,
        source: FrameSource,
        settings: FrameCacheSettings,
        kept: CachedEpisodes,
        camera: str,
        memory: ProcessMemory | None = None,
    ) -> None:
        """Open the cache of a camera, without decoding.

        ``memory`` is the cache memory of the process that this source was unpickled from.
        """
        self._given = source, settings, kept, camera
        self._source = source
        self._identities = {
            path: file_identity(path) for path in source.files(np.arange(len(source.lengths)))
        }
        self._layout = _layout(source, settings, kept)
        self._store = self._open(memory)
        self._complete = np.zeros(len(source.lengths), bool)
        """Episodes that are known to be cached completely."""
        self._shard = self._layout.starts[:-1] * self._layout.picture_bytes // _SHARD_BYTES

    def __reduce__(self) -> Any:
        memory = self._store.memory if isinstance(self._store, RamStore) else None
        return CachedSource, (*self._given, memory)

    @property
    def pixels(self) -> Pixels:
        """The meaning of the pixel values."""
        return self._source.pixels

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        return self._source.shape

    @property
    def lengths(self) -> Array:
        """The number of frames of every episode."""
        return self._source.lengths

    def files(self, episodes: Array) -> list[Path]:
        """Return the files that hold the images of ``episodes``, without duplicates."""
        return self._source.files(episodes)

    def fingerprint(self) -> str:
        """Return a text that differs if the same files would give other images."""
        return self._source.fingerprint()

    def read(self, episodes: Array, frames: Array, threads: int | None = None) -> Array:
        """Return images; episodes that are not cached yet are first decoded completely.

        Episodes with damaged images are decoded again.
        """
        positions = self._layout.starts[episodes] + frames
        for _ in range(_MOST_READS):
            if not self._complete[episodes].all():
                self.fill(np.unique(episodes), cores=threads)
            try:
                return self._store.take(positions)
            except DamagedFrames as found:
                damaged = np.unique(episodes[found.is_damaged])
                self._complete[damaged] = False
                self._store.unmark(damaged)
        raise DatasetError(
            f"the cache {self._given[1].folder} does not hold what was written to it; check its "
            "disk, choose another with --dataset.cache_dir, or --dataset.cache=ram",
            code="cache.damaged",
        )

    def view(self, episode: int) -> Array | None:
        """Return the images of an episode without copying them; None if it is not cached yet.

        The cache must be in memory.
        """
        assert isinstance(self._store, RamStore)
        if not self._store.is_done()[episode]:
            return None
        return self._store.view(*self._layout.starts[episode : episode + 2].tolist())

    def fill(
        self,
        episodes: Array,
        told: Callable[[int, int], None] | None = None,
        cores: int | None = None,
    ) -> None:
        """Decode the missing ones of ``episodes`` (ascending), in order.

        Several processes share the work. ``told`` is called with the number of cached frames and
        the total. At most ``cores`` are used, or all: shards are decoded in parallel, so that
        decoding continues while one is written.
        """
        total = int(self.lengths[episodes].sum())
        cores = cores or usable_cores()
        self._fill_in_processes(episodes, told, cores)
        at_once = min(cores, max(_AT_ONCE, cores // _CORES_OF_A_SHARD))
        with ThreadPoolExecutor(at_once, "filling") as executor:
            while len(missing := episodes[~self._store.is_done()[episodes]]):
                shards = np.unique(self._shard[missing]).tolist()
                threads = -(-cores // min(at_once, len(shards)))

                def fill_one(shard: int, missing: Array = missing, threads: int = threads) -> bool:
                    return self._fill_shard(missing[self._shard[missing] == shard], shard, threads)

                progressed = False
                for filled in executor.map(fill_one, shards):
                    progressed |= filled
                    if told is not None:
                        done = episodes[self._store.is_done()[episodes]]
                        told(int(self.lengths[done].sum()), total)
                if not progressed:  # other processes decode all that is missing
                    time.sleep(_WAIT_S)
        self._complete[episodes] = True

    def _fill_in_processes(
        self, episodes: Array, told: Callable[[int, int], None] | None, cores: int
    ) -> None:
        """Decode many images of data files in several processes; failures leave some missing.

        Threads would wait for each other: one image takes a millisecond, and Python copies it.
        """
        missing = episodes[~self._store.is_done()[episodes]]
        shards, total = np.unique(self._shard[missing]), int(self.lengths[episodes].sum())
        processes = min(cores, len(shards))
        if (
            processes < _WORTH_PROCESSES
            or self.lengths[missing].sum() < _FRAMES_WORTH_PROCESSES
            or not isinstance(self._source, TableSource)
        ):
            return
        share_of = np.searchsorted(shards, self._shard[missing]) % processes
        shares = [missing[share_of == number] for number in range(processes)]
        for _ in running_fillers(self, shares):
            if told is not None:
                done = episodes[self._store.is_done()[episodes]]
                told(int(self.lengths[done].sum()), total)

    def close(self) -> None:
        """Release the entry, which may then be evicted."""
        self._store.close()

    def _open(self, memory: ProcessMemory | None) -> Store:
        source, settings, kept, camera = self._given
        if settings.is_decoded_into_ram:
            return RamStore(self._layout, memory)
        told = hashlib.sha256(source.fingerprint().encode())
        for found in self._identities.values():
            told.update(f"{found}\n".encode())
        name = told.hexdigest()[:24]
        there = done_episodes(settings.folder / name, len(source.lengths))
        both = CachedEpisodes(kept.dataset, np.union1d(kept.episodes, there))
        card = CacheEntryInfo(
            kept.dataset, camera, source.shape, self._layout.frames, _planned(source, both)
        )
        entry = open_entry(
            settings.folder,
            name,
            card,
            settings.most_bytes,
            partial(is_whole, layout=self._layout),
        )
        return DiskStore(self._layout, entry)

    def _fill_shard(self, episodes: Array, shard: int, threads: int) -> bool:
        """Decode the episodes of a shard; return False if another process does."""
        lock = self._store.claim(shard % STRIPES)
        if lock is None:
            return False
        try:
            missing = episodes[~self._store.is_done()[episodes]]
            for part, frames in _portions(missing, self.lengths, self._layout.picture_bytes):
                pictures = self._source.read(part, frames, threads)
                positions = self._layout.starts[part] + frames
                for run in np.split(
                    np.arange(len(part)), np.flatnonzero(np.diff(positions) != 1) + 1
                ):
                    self._store.put(int(positions[run[0]]), pictures[run[0] : run[-1] + 1])
            self._check_unchanged(missing)
            self._store.mark(missing)
        finally:
            lock.release()
        return True

    def _check_unchanged(self, episodes: Array) -> None:
        """Check that the decoded files are those that the entry's key was computed from."""
        for path in self._source.files(episodes):
            if file_identity(path) != self._identities[path]:
                raise DatasetError(
                    f"{path} was changed while its frames were decoded; open the dataset again",
                    code="dataset.changed",
                )


def _layout(source: FrameSource, settings: FrameCacheSettings, kept: CachedEpisodes) -> FrameLayout:
    lengths = source.lengths
    if settings.is_decoded_into_ram:  # a file may be sparse, memory may not
        lengths = np.where(np.isin(np.arange(len(lengths)), kept.episodes), lengths, 0)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return FrameLayout(source.shape, source.pixels.dtype, starts)


def _portions(episodes: Array, lengths: Array, picture_bytes: int) -> Iterator[tuple[Array, Array]]:
    """Yield the frames of episodes in order, in batches that fit into memory."""
    all_episodes = np.repeat(episodes, lengths[episodes])
    ends = np.cumsum(lengths[episodes])
    all_frames = np.arange(len(all_episodes)) - np.repeat(
        ends - lengths[episodes], lengths[episodes]
    )
    most = max(1, _SHARD_BYTES // picture_bytes)
    for start in range(0, len(all_episodes), most):
        part = slice(start, start + most)
        yield all_episodes[part], all_frames[part]
