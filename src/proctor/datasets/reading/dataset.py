"""``Dataset``: random access to the frames of a dataset, one at a time or in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from proctor.datasets.cache.column_cache import ColumnCache
from proctor.datasets.cache_settings import FrameCacheSettings
from proctor.datasets.format.info import data_file
from proctor.datasets.format.tables import Stats
from proctor.datasets.format.tasks import SUBTASK_INDEX
from proctor.datasets.frames.depth import DepthScale
from proctor.datasets.frames.video import FrameReader
from proctor.datasets.numbers.columns import TableFile
from proctor.datasets.numbers.store import FrameColumns
from proctor.datasets.reading.cached import CachedEpisodes, CachedSource, with_cache
from proctor.datasets.reading.frame_source import FrameSource, TableSource, VideoSource
from proctor.datasets.reading.metadata import DatasetMetadata
from proctor.datasets.reading.windows import FrameWindows
from proctor.errors import DatasetError
from proctor.features import Array, Interface


@dataclass(frozen=True)
class ImageReadOptions:
    """Options for reading images."""

    reader: FrameReader
    size: tuple[int, int] | None = None
    """Height and width that images are resized to; None keeps their size."""
    cache: FrameCacheSettings = field(default_factory=FrameCacheSettings)


class Dataset:
    """The frames of a dataset, or of some of its episodes.

    ``ds[i]`` is one frame, and ``ds.batch(positions)`` stacks many. Positions count the frames of
    the chosen episodes. A dataset can be pickled for other processes.
    """

    def __init__(
        self,
        source: DatasetMetadata,
        chosen: Array,
        offsets: dict[str, Array],
        look: ImageReadOptions,
    ) -> None:
        self._source, self._image_size = source, look.size
        self.name, self.root, self.info = source.name, source.root, source.info
        self.episodes, self.tasks = source.episodes, source.tasks
        self.chosen = chosen
        """The episodes that are read, in order."""
        self.offsets = offsets
        """Frame offsets of the features with delta_timestamps, int64 [T] each."""
        self._tolerance_s = look.reader.tolerance_s
        self._length = source.episodes.length[chosen]
        self._ends = np.cumsum(self._length)
        files, self._first_row = _placed(source, chosen)
        self._guard = source.guard(chosen, [file.path for file in files])
        shelf = ColumnCache(source.name, look.cache)
        check = None if self._guard is None else self._guard.check
        self._tables = FrameColumns(source.info, files, shelf, check)
        self.cameras = self._cameras(look)
        """The frame source of each camera."""

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __repr__(self) -> str:
        n = len(self.chosen)
        return (
            f"Dataset({self.name}: {n:,} episode{'s' * (n != 1)}, {len(self):,} frames, "
            f"{self.info.fps} fps, features: {', '.join(self.info.features)})"
        )

    @property
    def spans(self) -> Array:
        """Positions [from, to) of each chosen episode, int64 [n, 2]."""
        return np.stack([self._ends - self._length, self._ends], axis=1)

    @cached_property
    def interface(self) -> Interface:
        """The dataset's observations and actions, as a policy's interface."""
        return self._source.interface(self._image_size)

    @property
    def stats(self) -> Stats:
        """The statistics of the whole dataset, also if only some episodes are read."""
        return self._source.stats

    @cached_property
    def _columns(self) -> FrameColumns:
        """The columns of the data files, checked against the episodes table."""
        columns = self._tables
        if self.info.is_v2 or not len(self):  # in v2.x every episode is a file
            return columns
        long = self._length > 0
        for row in (self._first_row[long], (self._first_row + self._length)[long] - 1):
            found = columns["episode_index"].take(row)
            wrong = np.flatnonzero(found != self.chosen[long])
            if len(wrong):
                episode = self.chosen[long][wrong[0]]
                path = data_file(self.root, self.info, *self.episodes[int(episode)].data)
                raise DatasetError(
                    f"{path}: found episode {found[wrong[0]]} in the rows of episode {episode}",
                    code="dataset.episode-order",
                )
        return columns

    def __getitem__(self, position: int) -> dict[str, Any]:
        """Return one frame; features of shape (1,) are scalars, ``task`` is a string.

        Raises:
            IndexError: there is no such frame.
            DatasetError: it cannot be read.
        """
        if not -len(self) <= position < len(self):
            raise IndexError(f"frame {position} is not in {self.name} (0 to {len(self) - 1})")
        return {key: value[0] for key, value in self.batch([position % len(self)]).items()}

    def batch(self, positions: Sequence[int] | Array, keys: Sequence[str] | None = None) -> Any:
        """Return stacked frames {key: array [B, ...]} of all features or of ``keys``.

        Features with delta_timestamps are [B, T, ...] and have a mask ``<key>_is_pad`` [B, T]; a
        video with a single timestamp has no T. Images are uint8 [B, (T,) H, W, C], depth is float32
        millimetres. ``task``, ``subtask`` (if the dataset has some) and strings are lists.

        Raises:
            IndexError: there is no such frame.
            DatasetError: a file is missing or damaged.
        """
        moments = self._moments(positions)
        wanted = tuple(self.info.features) if keys is None else keys
        out: dict[str, Any] = {}
        for key in wanted:
            self.info.entry(key)
            rows = moments.rows
            if key in self.offsets:
                rows, out[f"{key}_is_pad"] = moments.around(self.offsets[key])
                if key in self.info.video_keys and rows.shape[1] == 1:
                    rows = rows[:, 0]
            out[key] = self._gather(key, rows, moments)
        out["task"] = self._words("task_index", self.tasks, moments.rows)
        subtasks = self._source.subtasks
        if subtasks is not None and SUBTASK_INDEX in wanted:
            out["subtask"] = self._words(SUBTASK_INDEX, subtasks, moments.rows)
        return out

    def fill_cache(
        self,
        told: Callable[[str, int, int], None] | None = None,
        keys: Sequence[str] | None = None,
    ) -> None:
        """Decode every image that the cache does not have yet, in order.

        Without it, the first batches wait for the episodes that they read. ``told`` is called with
        a camera, its number of cached frames, and the total. ``keys`` selects cameras.
        """
        for key, camera in self.cameras.items():
            if isinstance(camera, CachedSource) and (keys is None or key in keys):
                camera.fill(self.chosen, None if told is None else partial(told, key))

    def close_cache(self) -> None:
        """Release the frame caches; memory is freed with this dataset."""
        for camera in self.cameras.values():
            if isinstance(camera, CachedSource):
                camera.close()

    def column(self, key: str) -> Any:
        """Return a feature that is not an image, of all frames in order, [N, ...]."""
        return self._columns[key].take(self._moments(np.arange(len(self))).rows)

    def cached_images(self, key: str, chosen: int) -> Array | None:
        """Return the images of the episode at an index of ``chosen``; None: not cached yet.

        Colours are not copied. The cache must be in memory.
        """
        camera = self.cameras[key]
        assert isinstance(camera, CachedSource)
        images = camera.view(int(self.chosen[chosen]))
        if images is None:
            return None
        frames = np.arange(len(images))
        return self._checked_images(key, self._first_row[chosen] + frames, frames, images)

    def _moments(self, positions: Sequence[int] | Array) -> FrameWindows:
        at = np.asarray(positions, np.int64)
        if at.ndim != 1:
            raise IndexError(f"positions must be a list of numbers, not of shape {at.shape}")
        wrong = at[(at < 0) | (at >= len(self))]
        if len(wrong):
            raise IndexError(f"frame {wrong[0]} is not in {self.name} (0 to {len(self) - 1})")
        chosen = np.searchsorted(self._ends, at, side="right")
        length = self._length[chosen]
        frame = at - self._ends[chosen] + length
        return FrameWindows(chosen, frame, length, self._first_row[chosen])

    def _gather(self, key: str, rows: Array, moments: FrameWindows) -> Any:
        if key not in self.cameras:
            return self._columns[key].take(rows)
        times = rows.size // len(rows) if len(rows) else 1
        episodes = self.chosen[np.repeat(moments.chosen, times)]
        frames = rows.ravel() - np.repeat(moments.first_row, times)
        camera = self.cameras[key]
        if rows.size:
            pictures = camera.read(episodes, frames)
        else:
            pictures = np.empty((0, *camera.shape), camera.pixels.dtype)
        pictures = self._checked_images(key, rows.ravel(), frames, pictures)
        return pictures.reshape(*rows.shape, *pictures.shape[1:])

    def _checked_images(self, key: str, rows: Array, frames: Array, images: Array) -> Array:
        """Check the timestamps of a video's images, and decode depth."""
        if key not in self.info.video_keys:
            return images
        self._check_times(rows, frames)
        return (
            DepthScale.of(self.info.entry(key)).decode(images)
            if self.info.is_depth(key)
            else images
        )

    def _check_times(self, rows: Array, frames: Array) -> None:
        """Check that timestamps match the frame numbers and fps."""
        said = self._columns["timestamp"].take(rows)
        due = (frames / self.info.fps).astype(said.dtype)  # rounded like the stored ones
        wrong = np.flatnonzero(~(np.abs(said - due) <= self._tolerance_s))
        if len(wrong):
            raise DatasetError(
                f"{self.root}: frame {frames[wrong[0]]} of an episode has timestamp "
                f"{said[wrong[0]]:g} s at {self.info.fps} fps; run: proctor data check {self.root}",
                code="dataset.wrong-timestamp",
            )

    def _cameras(self, look: ImageReadOptions) -> dict[str, FrameSource]:
        first_row = np.full(len(self.episodes), -1)
        first_row[self.chosen] = self._first_row
        given, is_cached = (self.root, self.info, self.episodes), look.cache.is_on
        sources: dict[str, FrameSource] = {
            key: VideoSource(*given, key, look.size, look.reader, self._guard)
            if key in self.info.video_keys
            else TableSource(*given, key, self._tables, first_row, look.size, is_cached)
            for key in self.info.cameras
        }
        return with_cache(sources, look.cache, CachedEpisodes(self.name, self.chosen))

    def _words(self, key: str, words: Sequence[str], rows: Array) -> list[str]:
        """Return the texts that the numbers in column ``key`` of ``rows`` stand for."""
        indices = self._columns[key].take(rows)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(words):
            what = key.removesuffix("_index")
            raise DatasetError(
                f"{self.root}: {key} is {indices.max()}, but there are {len(words)} {what}s",
                code="dataset.unknown-task",
            )
        return [words[i] for i in indices]


def _placed(source: DatasetMetadata, chosen: Array) -> tuple[list[TableFile], Array]:
    """Return the data files of the chosen episodes, and the first row of each episode.

    A data file holds its episodes in order; rows after them are ignored.
    """
    episodes = source.episodes
    names, table_of = np.unique(
        np.stack([episodes.data_chunk, episodes.data_file], axis=1), axis=0, return_inverse=True
    )
    table_of = table_of.reshape(-1)
    rows = np.zeros(len(names), np.int64)
    np.add.at(rows, table_of, episodes.length)
    order = np.argsort(table_of, kind="stable")
    before = np.cumsum(episodes.length[order]) - episodes.length[order]
    within = np.empty(len(order), np.int64)  # first row of each episode in its data file
    within[order] = before - (np.cumsum(rows) - rows)[table_of[order]]
    needed = np.unique(table_of[chosen])
    starts = np.zeros(len(names), np.int64)
    starts[needed] = np.cumsum(rows[needed]) - rows[needed]
    files = [
        TableFile(
            data_file(source.root, source.info, int(names[table][0]), int(names[table][1])),
            int(starts[table]),
            int(rows[table]),
        )
        for table in needed
    ]
    return files, starts[table_of[chosen]] + within[chosen]
