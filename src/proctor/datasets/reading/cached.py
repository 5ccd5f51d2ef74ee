"""Frames that are decoded once, in order, and gathered ever after.

An entry holds the pictures of one camera at one size, one after the other as the table of episodes
has them, uncompressed: frame f of episode e lies at ``(starts[e] + f) * bytes of a picture``. Its
key is made of everything that the pictures depend on: a dataset that was changed has another key,
and nothing stale is ever found.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.cache.folder import CacheEntryInfo, file_identity, open_entry
from proctor.datasets.cache.store import (
    STRIPES,
    DiskStore,
    FrameLayout,
    ProcessMemory,
    RamStore,
    Store,
    done_episodes,
)
from proctor.datasets.cache_settings import GB, CacheKind, FrameCacheSettings
from proctor.datasets.frames.decoder import Pixels
from proctor.datasets.reading.frame_source import FrameSource
from proctor.errors import DatasetError
from proctor.features import Array
from proctor.system.platform_info import usable_cores, usable_memory_bytes

_SHARD_BYTES = 32 * 2**20
"""Pictures that are decoded between two looks at what others have done."""
_WAIT_S = 0.02
_AT_ONCE, _CORES_OF_A_SHARD = 2, 4
"""Shards that are filled side by side, at least, and the cores that each has where there are many.
"""


@dataclass(frozen=True)
class CachedEpisodes:
    """What is to be kept: which dataset's, for people, and which of its episodes."""

    dataset: str
    episodes: Array
    """Rows of the table of episodes."""


def with_cache(
    sources: Mapping[str, FrameSource], settings: FrameCacheSettings, kept: CachedEpisodes
) -> dict[str, FrameSource]:
    """Return the cameras with a cache before each, as ``settings`` say.

    Raises:
        DatasetError: there is no room for all of them.
    """
    if settings.cache is CacheKind.OFF:
        return dict(sources)
    planned = sum(_planned(source, kept) for source in sources.values())
    most, said = settings.most_bytes, "--dataset.cache_gb allows"
    if settings.cache is CacheKind.RAM and usable_memory_bytes() < most:
        most, said = usable_memory_bytes(), "this machine has"
    if planned > most:
        shapes = {source.shape for source in sources.values()}
        sizes = ", ".join(sorted(f"{width}x{height}" for height, width, _ in shapes))
        raise DatasetError(
            f"the frames of {kept.dataset} need {planned / GB:.1f} GB at {sizes}, {said} "
            f"{most / GB:.1f} GB: use fewer episodes or smaller pictures, or --dataset.cache=off",
            code="cache.too-small",
        )
    return {
        camera: CachedSource(source, settings, kept, camera) for camera, source in sources.items()
    }


def _planned(source: FrameSource, kept: CachedEpisodes) -> int:
    frames = int(source.lengths[kept.episodes].sum())
    return frames * int(np.prod(source.shape)) * np.dtype(source.pixels.dtype).itemsize


class CachedSource:
    """A camera whose pictures are decoded once. A FrameSource itself."""

    def __init__(
        self,
        source: FrameSource,
        settings: FrameCacheSettings,
        kept: CachedEpisodes,
        camera: str,
        memory: ProcessMemory | None = None,
    ) -> None:
        """Begin to use the cache of a camera; nothing is decoded yet.

        ``memory`` is where the process that this one was handed over by keeps its pictures.

        Raises:
            DatasetError: there is no room, or the folder cannot be used.
        """
        self._given = source, settings, kept, camera
        self._source = source
        self._identities = {
            path: file_identity(path) for path in source.files(np.arange(len(source.lengths)))
        }
        self._layout = _layout(source, settings, kept)
        self._store = self._open(memory)
        self._complete = np.zeros(len(source.lengths), bool)
        """Episodes that were seen complete: they stay so."""
        self._shard = self._layout.starts[:-1] * self._layout.picture_bytes // _SHARD_BYTES

    def __reduce__(self) -> Any:
        memory = self._store.memory if isinstance(self._store, RamStore) else None
        return CachedSource, (*self._given, memory)

    @property
    def pixels(self) -> Pixels:
        """What the numbers are."""
        return self._source.pixels

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of a picture."""
        return self._source.shape

    @property
    def lengths(self) -> Array:
        """The number of frames of every episode."""
        return self._source.lengths

    def files(self, episodes: Array) -> list[Path]:
        """Return the files that the pictures of ``episodes`` lie in, each once."""
        return self._source.files(episodes)

    def fingerprint(self) -> str:
        """Return a text that differs wherever other pictures are made of the same files."""
        return self._source.fingerprint()

    def read(self, episodes: Array, frames: Array, threads: int | None = None) -> Array:
        """Return the pictures; episodes that are not there yet are decoded first, whole.

        Raises:
            DatasetError: they cannot be decoded, or not be kept.
        """
        if not self._complete[episodes].all():
            self.fill(np.unique(episodes), cores=threads)
        return self._store.take(self._layout.starts[episodes] + frames)

    def fill(
        self,
        episodes: Array,
        told: Callable[[int, int], None] | None = None,
        cores: int | None = None,
    ) -> None:
        """Decode what is not there yet of ``episodes`` (ascending), in order.

        Processes that do this at the same time share the work. ``told`` hears how many frames are
        there, of how many. As many ``cores`` are used, or all: some parts are decoded side by
        side, so that while one is put away others are decoded.

        Raises:
            DatasetError: they cannot be decoded, or not be kept.
        """
        total = int(self.lengths[episodes].sum())
        cores = cores or usable_cores()
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
                if not progressed:  # others are at all that is missing
                    time.sleep(_WAIT_S)
        self._complete[episodes] = True

    def close(self) -> None:
        """Let go of the entry, which may then be removed."""
        self._store.close()

    def _open(self, memory: ProcessMemory | None) -> Store:
        source, settings, kept, camera = self._given
        if settings.cache is CacheKind.RAM:
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
        return DiskStore(self._layout, open_entry(settings.folder, name, card, settings.most_bytes))

    def _fill_shard(self, episodes: Array, shard: int, threads: int) -> bool:
        """Decode episodes of a shard, and say whether it was our turn."""
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
        """Check that what was decoded is what the entry's key was made of."""
        for path in self._source.files(episodes):
            if file_identity(path) != self._identities[path]:
                raise DatasetError(
                    f"{path} was changed while its frames were decoded; open the dataset again",
                    code="dataset.changed",
                )


def _layout(source: FrameSource, settings: FrameCacheSettings, kept: CachedEpisodes) -> FrameLayout:
    lengths = source.lengths
    if settings.cache is CacheKind.RAM:  # a file may have holes, memory may not
        lengths = np.where(np.isin(np.arange(len(lengths)), kept.episodes), lengths, 0)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return FrameLayout(source.shape, source.pixels.dtype, starts)


def _portions(episodes: Array, lengths: Array, picture_bytes: int) -> Iterator[tuple[Array, Array]]:
    """Yield the frames of episodes, in order, as many at once as memory is meant to hold."""
    all_episodes = np.repeat(episodes, lengths[episodes])
    ends = np.cumsum(lengths[episodes])
    all_frames = np.arange(len(all_episodes)) - np.repeat(
        ends - lengths[episodes], lengths[episodes]
    )
    most = max(1, _SHARD_BYTES // picture_bytes)
    for start in range(0, len(all_episodes), most):
        part = slice(start, start + most)
        yield all_episodes[part], all_frames[part]
