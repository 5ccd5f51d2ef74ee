"""Datasets read without having them whole: shards in turn, each fetched when it is needed."""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.format.info import data_file, video_file
from proctor.datasets.frames.video import FrameReader
from proctor.datasets.reader import chosen_episodes
from proctor.datasets.reading.dataset import Dataset, ImageReadOptions
from proctor.datasets.reading.metadata import DatasetMetadata, read_dataset_metadata
from proctor.datasets.reading.shards import Shard, shards_of, shuffled
from proctor.datasets.reading.stream_files import DatasetFiles, dataset_files
from proctor.datasets.reading.windows import DeltaTimestamps, frame_offsets
from proctor.errors import UsageError
from proctor.features import Array

_AHEAD = 32
"""Frames that are read at once when they are asked for one by one."""
_MOST_OPEN_TABLES = 2**28
"""Bytes of the files whose numbers are kept in memory."""


@dataclass(frozen=True)
class StreamOptions:
    """What is streamed, and in which order."""

    episodes: Sequence[int] | None = None
    """Those that are read; None: all."""
    delta_timestamps: DeltaTimestamps | None = None
    tolerance_s: float = 1e-4
    seed: int = 0
    image_size: tuple[int, int] | None = None
    """Height and width that pictures are scaled to."""
    buffer: int = 4096
    """Frames of the shuffle buffer."""
    kept_gb: float = 8.0
    """Fetched files that are kept for another frame; those of one shard always are."""


@dataclass(frozen=True)
class StreamState:
    """Where a stream stands, and which one it is."""

    epoch: int
    position: int
    """Frames of the epoch that were handed out."""
    seed: int
    buffer: int
    frames: int
    """Of an epoch."""
    episodes: str = ""
    """Which they are of, as a hash; empty in a state from before this was written down."""


class Stream:
    """The frames of a dataset in an order that only the seed decides, from any kind of source.

    ``for frame in stream`` and ``for batch in stream.batches(n)`` go on where the stream stands, to
    the end of the epoch; the next loop is the next epoch, in another order.
    """

    def __init__(
        self, files: DatasetFiles, options: StreamOptions, start_at: StreamState | None = None
    ) -> None:
        """Read the metadata; nothing else is fetched yet.

        Raises:
            DatasetError: there is no dataset, or no such episode.
            UsageError: ``start_at`` is of another stream, or an option cannot be.
        """
        if options.buffer < 1 or options.seed < 0:
            raise UsageError(
                f"a stream needs a buffer of 1 or more frames and a seed of 0 or more, not "
                f"{options.buffer} and {options.seed}",
                code="stream.invalid-options",
            )
        root = files.root
        self.source = read_dataset_metadata(str(root), root)
        if files.private:
            self.source = replace(self.source, stamp=None)
        """What the metadata say."""
        info, episodes = self.source.info, self.source.episodes
        self._files, self._options = files, options
        self._offsets = frame_offsets(options.delta_timestamps, info, options.tolerance_s)
        chosen = chosen_episodes(str(root), episodes, options.episodes)
        counted = np.stack([chosen, episodes.length[chosen]]).astype("<i8")
        self._chosen = hashlib.sha256(counted.tobytes()).hexdigest()[:16]
        self.lengths = episodes.length[chosen]
        """Frames of each chosen episode."""
        self._shards = shards_of(episodes, chosen)
        self._shard_of = _shard_of(self._shards, int(episodes.length[chosen].sum()))
        self._frames = FrameReader(tolerance_s=options.tolerance_s)
        self._tables = _Tables(
            self.source, chosen, self._offsets, ImageReadOptions(self._frames, options.image_size)
        )
        self._kept = _Kept(files, int(options.kept_gb * 1e9))
        self._epoch, self._position = 0, 0
        if start_at is not None:
            self._go_to(start_at)

    def __len__(self) -> int:
        """Frames of an epoch."""
        return len(self._shard_of)

    def state(self) -> StreamState:
        """Return where the stream stands: after what was handed out last."""
        options = self._options
        return StreamState(
            self._epoch, self._position, options.seed, options.buffer, len(self), self._chosen
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the frames of the epoch that are left, as ``ds[i]`` returns them."""
        for positions in self._left(_AHEAD):
            batch = self.batch(positions)
            for place in range(len(positions)):
                self._position += 1
                yield {key: value[place] for key, value in batch.items()}
        self._end_epoch()

    def batches(self, size: int) -> Iterator[dict[str, Any]]:
        """Yield the frames of the epoch that are left, ``size`` at a time and then the rest."""
        for positions in self._left(size):
            batch = self.batch(positions)
            self._position += len(positions)
            yield batch
        self._end_epoch()

    def close(self) -> None:
        """Close all files, and delete those that were fetched."""
        self._frames.close()
        self._files.close()

    def _go_to(self, state: StreamState) -> None:
        here = self.state()
        if (state.seed, state.buffer, state.frames) != (here.seed, here.buffer, here.frames):
            raise UsageError(
                f"the state is of another stream ({state.frames} frames, seed {state.seed}, buffer "
                f"{state.buffer}) than this one ({here.frames}, {here.seed}, {here.buffer})",
                code="stream.wrong-state",
            )
        if state.episodes not in ("", here.episodes):
            raise UsageError(
                "the state is of a stream of other episodes, as many frames as here",
                code="stream.wrong-state",
            )
        if state.epoch < 0 or not 0 <= state.position <= len(self):
            raise UsageError(
                f"there is no position {state.position} of epoch {state.epoch}",
                code="stream.wrong-state",
            )
        self._epoch, self._position = state.epoch, state.position

    def _end_epoch(self) -> None:
        self._epoch, self._position = self._epoch + 1, 0

    def _left(self, size: int) -> Iterator[list[int]]:
        order = itertools.islice(self.order(self._epoch), self._position, None)
        while positions := list(itertools.islice(order, size)):
            yield positions

    def order(self, epoch: int) -> Iterator[int]:
        """Yield the positions of an epoch; those of chosen episodes are counted without gaps."""
        return shuffled(self._shards, self._options.seed, epoch, self._options.buffer)

    def batch(
        self, positions: Sequence[int] | Array, keys: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return frames as ``Dataset.batch`` does; shard by shard, each fetched if it is not here.

        Positions that lie together as ``order`` has them cost least.

        Raises:
            DatasetError: a file is missing or damaged.
            UsageError: it cannot be fetched.
        """
        at = np.array(positions)
        shard_of = self._shard_of[at]
        whole: dict[str, Any] = {}
        for number in dict.fromkeys(shard_of.tolist()):
            shard = self._shards[number]
            places = np.flatnonzero(shard_of == number)
            gone = self._kept.hold(self._paths(shard))
            if gone:
                self._frames.close()  # a file that is open keeps its place on the disk
            _put(whole, self._tables.batch(shard, at[places], keys), places, len(at))
        return whole

    def _paths(self, shard: Shard) -> list[Path]:
        root, info = self.source.root, self.source.info
        videos = [video_file(root, info, *place) for place in shard.videos]
        return [data_file(root, info, *shard.data), *videos]


def open_stream(
    path_or_id: str | Path,
    *,
    revision: str | None = None,
    options: StreamOptions | None = None,
    start_at: StreamState | None = None,
    root: Path | None = None,
) -> Stream:
    """Stream a dataset: a folder, or a Hub id, of which each file is there while it is needed.

    ``root`` is the folder of a dataset that is named by its Hub id, if it lies there.

    Raises:
        UsageError: there is no such dataset or episode, or ``start_at`` is of another stream.
    """
    files = dataset_files(path_or_id, revision, root)
    try:
        return Stream(files, options or StreamOptions(), start_at)
    except BaseException:
        files.close()
        raise


class _Tables:
    """The numbers of some data files, each as a dataset of the chosen episodes in it."""

    def __init__(
        self,
        source: DatasetMetadata,
        chosen: Array,
        offsets: dict[str, Array],
        look: ImageReadOptions,
    ) -> None:
        self._source, self._chosen = source, chosen
        self._offsets, self._look = offsets, look
        self._ends = np.cumsum(source.episodes.length[chosen])
        self._open: OrderedDict[tuple[int, int], tuple[Dataset, int]] = OrderedDict()
        """With the size of each file; least recently used first."""

    def batch(self, shard: Shard, positions: Array, keys: Sequence[str] | None) -> dict[str, Any]:
        """Return frames of ``shard``, counted over all chosen episodes."""
        episodes = self._source.episodes
        chunk, file = shard.data
        here = (episodes.data_chunk == chunk) & (episodes.data_file == file)
        places = np.flatnonzero(here[self._chosen])
        lengths = episodes.length[self._chosen[places]]
        which = np.searchsorted(self._ends[places], positions, side="right")
        before_all, before_here = self._ends[places] - lengths, np.cumsum(lengths) - lengths
        dataset = self._dataset(shard.data, self._chosen[places])
        here_at = positions - before_all[which] + before_here[which]
        batch: dict[str, Any] = dataset.batch(here_at, keys)
        return batch

    def _dataset(self, data: tuple[int, int], chosen: Array) -> Dataset:
        if data not in self._open:
            dataset = Dataset(self._source, chosen, self._offsets, self._look)
            size = data_file(self._source.root, self._source.info, *data).stat().st_size
            self._open[data] = dataset, size
        self._open.move_to_end(data)
        while len(self._open) > 1 and sum(s for _, s in self._open.values()) > _MOST_OPEN_TABLES:
            self._open.popitem(last=False)
        return self._open[data][0]


class _Kept:
    """The files that were fetched, the least recently used of which are dropped for new ones."""

    def __init__(self, files: DatasetFiles, most_bytes: int) -> None:
        self._files, self._most_bytes = files, most_bytes
        self._sizes: OrderedDict[Path, int] = OrderedDict()

    def hold(self, paths: Sequence[Path]) -> bool:
        """See to it that ``paths`` are there; return whether others were dropped for them."""
        for path in paths:
            if path not in self._sizes:
                self._sizes[path] = self._files.fetch(path)
            self._sizes.move_to_end(path)
        dropped = False
        while sum(self._sizes.values()) > self._most_bytes and len(self._sizes) > len(paths):
            path, _ = self._sizes.popitem(last=False)
            self._files.drop(path)
            dropped = True
        return dropped


def _shard_of(shards: Sequence[Shard], frames: int) -> Array:
    """Return the number of the shard that each position lies in."""
    numbers = np.zeros(frames, np.int32)
    for number, shard in enumerate(shards):
        numbers[shard.positions] = number
    return numbers


def _put(whole: dict[str, Any], part: dict[str, Any], places: Array, size: int) -> None:
    """Put frames into the batch of ``size`` that they are part of."""
    for key, values in part.items():
        if isinstance(values, np.ndarray):
            if key not in whole:
                whole[key] = np.empty((size, *values.shape[1:]), values.dtype)
            whole[key][places] = values
        else:
            line = whole.setdefault(key, [None] * size)
            for place, value in zip(places.tolist(), values, strict=True):
                line[place] = value
