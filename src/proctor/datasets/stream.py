"""Stream a dataset shard by shard; files are downloaded when they are needed."""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.format.episodes import Episodes
from proctor.datasets.format.info import data_file, video_file
from proctor.datasets.frames.video import FrameReader
from proctor.datasets.reader import chosen_episodes
from proctor.datasets.reading.dataset import Dataset, ImageReadOptions
from proctor.datasets.reading.metadata import DatasetMetadata, read_dataset_metadata
from proctor.datasets.reading.stream_files import DatasetFiles, dataset_files
from proctor.datasets.reading.windows import DeltaTimestamps, frame_offsets
from proctor.errors import UsageError
from proctor.features import Array

_DRAWN_AT_ONCE = 4096
"""Random numbers per call; one call per frame would dominate the cost."""


@dataclass(frozen=True)
class Shard:
    """Episodes that share a data file and one video file per camera."""

    data: tuple[int, int]
    """Chunk and file number of the data file."""
    videos: tuple[tuple[str, int, int], ...]
    """Camera, chunk and file number of each video."""
    positions: Array
    """Positions of its frames among all chosen episodes, int64 [n]."""


def shards_of(episodes: Episodes, chosen: Array) -> list[Shard]:
    """Group the ``chosen`` episodes into shards, ordered by their first episodes."""
    ends = np.cumsum(episodes.length[chosen])
    found: dict[tuple[int, ...], list[Array]] = {}
    for place, key in enumerate(_files(episodes, chosen)):
        end = int(ends[place])
        length = int(episodes.length[chosen[place]])
        if length:
            found.setdefault(key, []).append(np.arange(end - length, end))
    shards = []
    for (chunk, file, *rest), parts in found.items():
        places = zip(episodes.videos, rest[::2], rest[1::2], strict=True)
        shards.append(Shard((chunk, file), tuple(places), np.concatenate(parts)))
    return shards


def _files(episodes: Episodes, chosen: Array) -> Iterator[tuple[int, ...]]:
    """Yield the chunk and file of each episode's data file, then of each camera."""
    columns = [episodes.data_chunk, episodes.data_file]
    for spans in episodes.videos.values():
        columns += [spans.chunk, spans.file]
    yield from map(tuple, np.stack(columns, axis=1)[chosen].tolist())


def shuffled(shards: Sequence[Shard], seed: int, epoch: int, buffer: int) -> Iterator[int]:
    """Yield the positions of one epoch: shards in random order, through a shuffle buffer.

    The buffer holds positions, not frames, so a large one costs no memory. A new position replaces
    a random one; a buffer of one keeps the order inside the shards.
    """
    turns, places = np.random.default_rng([seed, epoch]).spawn(2)
    chance = _uniform(places)
    held: list[int] = []
    for turn in turns.permutation(len(shards)).tolist():
        for position in shards[turn].positions.tolist():
            if len(held) < buffer:
                held.append(position)
                continue
            place = int(next(chance) * buffer)
            yield held[place]
            held[place] = position
    while held:
        place = int(next(chance) * len(held))
        held[place], held[-1] = held[-1], held[place]
        yield held.pop()


def _uniform(generator: np.random.Generator) -> Iterator[float]:
    while True:
        yield from generator.random(_DRAWN_AT_ONCE).tolist()


_AHEAD = 32
"""Frames per read when the caller iterates frame by frame."""
_MOST_OPEN_TABLES = 2**28
"""Largest total size of open data files, in bytes."""


@dataclass(frozen=True)
class StreamOptions:
    """Options of a stream: its content and order."""

    episodes: Sequence[int] | None = None
    """Episodes to read; None reads all."""
    delta_timestamps: DeltaTimestamps | None = None
    tolerance_s: float = 1e-4
    seed: int = 0
    image_size: tuple[int, int] | None = None
    """Height and width that images are resized to; None keeps their size."""
    buffer: int = 4096
    """Size of the shuffle buffer, in frames."""
    kept_gb: float = 8.0
    """Largest size of downloaded files that are kept, in GB; a shard is always kept."""


@dataclass(frozen=True)
class StreamState:
    """The position and identity of a stream, to resume it."""

    epoch: int
    position: int
    """Frames of the epoch that were yielded."""
    seed: int
    buffer: int
    frames: int
    """Frames per epoch."""
    episodes: str = ""
    """Hash of the chosen episodes; empty in states of older versions."""


class Stream:
    """The frames of a dataset in an order that depends only on the seed.

    ``for frame in stream`` and ``for batch in stream.batches(n)`` continue at the current position
    until the end of the epoch. The next loop is the next epoch, in another order.
    """

    def __init__(
        self, files: DatasetFiles, options: StreamOptions, start_at: StreamState | None = None
    ) -> None:
        """Read the metadata; no other file is downloaded yet."""
        if options.buffer < 1 or options.seed < 0:
            raise UsageError(
                f"a stream needs a buffer of at least 1 frame and a seed of at least 0, got "
                f"{options.buffer} and {options.seed}",
                code="stream.invalid-options",
            )
        root = files.root
        self.source = read_dataset_metadata(str(root), root)
        if files.private:
            self.source = replace(self.source, stamp=None)
        """The dataset's metadata."""
        info, episodes = self.source.info, self.source.episodes
        self._files, self._options = files, options
        self._offsets = frame_offsets(options.delta_timestamps, info, options.tolerance_s)
        chosen = chosen_episodes(str(root), episodes, options.episodes)
        counted = np.stack([chosen, episodes.length[chosen]]).astype("<i8")
        self._chosen = hashlib.sha256(counted.tobytes()).hexdigest()[:16]
        self.lengths = episodes.length[chosen]
        """Number of frames of each chosen episode."""
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
        """Frames per epoch."""
        return len(self._shard_of)

    def state(self) -> StreamState:
        """Return the state after the last yielded frame."""
        options = self._options
        return StreamState(
            self._epoch, self._position, options.seed, options.buffer, len(self), self._chosen
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the remaining frames of the epoch, as ``ds[i]`` returns them."""
        for positions in self._left(_AHEAD):
            batch = self.batch(positions)
            for place in range(len(positions)):
                self._position += 1
                yield {key: value[place] for key, value in batch.items()}
        self._end_epoch()

    def batches(self, size: int) -> Iterator[dict[str, Any]]:
        """Yield the remaining frames of the epoch in batches of at most ``size``."""
        for positions in self._left(size):
            batch = self.batch(positions)
            self._position += len(positions)
            yield batch
        self._end_epoch()

    def close(self) -> None:
        """Close all files, and delete downloaded ones."""
        self._frames.close()
        self._files.close()

    def _go_to(self, state: StreamState) -> None:
        here = self.state()
        if (state.seed, state.buffer, state.frames) != (here.seed, here.buffer, here.frames):
            raise UsageError(
                f"the state belongs to another stream ({state.frames} frames, seed {state.seed}, "
                f"buffer {state.buffer}) than this one ({here.frames}, {here.seed}, {here.buffer})",
                code="stream.wrong-state",
            )
        if state.episodes not in ("", here.episodes):
            raise UsageError(
                "the state belongs to a stream of other episodes with as many frames",
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
        """Yield the positions of an epoch, which count the frames of the chosen episodes."""
        return shuffled(self._shards, self._options.seed, epoch, self._options.buffer)

    def batch(
        self, positions: Sequence[int] | Array, keys: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return frames as ``Dataset.batch`` does, shard by shard, with downloads if needed.

        Positions in the sequence of ``order`` cost least.
        """
        at = np.array(positions)
        shard_of = self._shard_of[at]
        whole: dict[str, Any] = {}
        for number in dict.fromkeys(shard_of.tolist()):
            shard = self._shards[number]
            places = np.flatnonzero(shard_of == number)
            gone = self._kept.hold(self._paths(shard))
            if gone:
                self._frames.close()  # an open file keeps its disk space
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
    """Stream a dataset by its folder or Hub id; each file is local only while it is needed.

    ``root`` is the local folder of a dataset that is named by its Hub id, if there is one.
    """
    files = dataset_files(path_or_id, revision, root)
    try:
        return Stream(files, options or StreamOptions(), start_at)
    except BaseException:
        files.close()
        raise


class _Tables:
    """Open data files, each as a ``Dataset`` of the chosen episodes in it."""

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
        """Data file -> its dataset and size in bytes; least recently used first."""

    def batch(self, shard: Shard, positions: Array, keys: Sequence[str] | None) -> dict[str, Any]:
        """Return frames of ``shard``; ``positions`` count the frames of all chosen episodes."""
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
    """The downloaded files; the least recently used ones are dropped for new ones."""

    def __init__(self, files: DatasetFiles, most_bytes: int) -> None:
        self._files, self._most_bytes = files, most_bytes
        self._sizes: OrderedDict[Path, int] = OrderedDict()

    def hold(self, paths: Sequence[Path]) -> bool:
        """Make ``paths`` available; return whether other files were dropped for them."""
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
    """Return the shard number of each position."""
    numbers = np.zeros(frames, np.int32)
    for number, shard in enumerate(shards):
        numbers[shard.positions] = number
    return numbers


def _put(whole: dict[str, Any], part: dict[str, Any], places: Array, size: int) -> None:
    """Write frames into their places of a batch of ``size``."""
    for key, values in part.items():
        if isinstance(values, np.ndarray):
            if key not in whole:
                whole[key] = np.empty((size, *values.shape[1:]), values.dtype)
            whole[key][places] = values
        else:
            line = whole.setdefault(key, [None] * size)
            for place, value in zip(places.tolist(), values, strict=True):
                line[place] = value
