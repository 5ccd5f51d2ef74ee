"""An episode in its own folder, recorded before it is appended to a dataset.

    take/
      frames.arrow            numbers, strings and PNG images of every frame, and its task
      <video key>.mp4         encoded while the frames arrive
      stats.json              statistics, and pixel counts of sampled images
      take.json               written last: without it the episode is not finished

A staged episode has no number, so any process (such as a worker) can record it. Another process
appends it to the dataset or discards it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.format.arrow import pa
from proctor.datasets.format.info import Info
from proctor.datasets.format.schema import arrow_type
from proctor.datasets.frames.depth import N_CODES, DepthEncoder, DepthScale, DepthUnit
from proctor.datasets.frames.encoder import Codec, VideoEncoder
from proctor.datasets.frames.video import probe
from proctor.datasets.numbers.arrays import as_arrow
from proctor.datasets.numbers.columns import column_to_array
from proctor.datasets.numbers.statistics import (
    FeatureStats,
    PixelCounts,
    Stats,
    array_stats,
    features_with_stats,
    level_stats,
)
from proctor.datasets.writing.frame import (
    PngEncoder,
    checked_frame,
    own_features,
    refuse_unwritable,
)
from proctor.errors import DatasetError
from proctor.features import Array
from proctor.system.files import atomic_write, read_regular_file, sync, sync_folder

TASK = "task"
_FRAMES, _STATS, _SAID = "frames.arrow", "stats.json", "take.json"
_OLD_STATS = "stats.npz"
"""File of earlier versions; an interrupted recording of theirs can be resumed."""
_BATCH = 64
"""Frames that are buffered in memory before they are written."""


@dataclass(frozen=True)
class StagedEpisode:
    """A finished episode in ``folder``; picklable."""

    folder: Path
    length: int
    tasks: tuple[str, ...]
    """The distinct tasks of its frames, in order of appearance."""
    start: str | None = None
    """Where it started (``proctor.starts.DemonstrationStart``); None: unknown."""

    @property
    def nbytes(self) -> int:
        """Size of its frames without videos, in bytes: the memory needed to append it."""
        return (self.folder / _FRAMES).stat().st_size

    def table(self) -> pa.Table:
        """Return its frames: the columns of the recorded features, and each frame's task."""
        with pa.memory_map(str(self.folder / _FRAMES)) as file:
            return pa.ipc.open_stream(file).read_all()

    def video(self, key: str) -> Path:
        """Return the video of camera ``key``."""
        return self.folder / f"{key}.mp4"

    def stats(self) -> tuple[Stats, dict[str, Array]]:
        """Return the statistics of its features, and pixel counts [C, 256] of each camera."""
        stats: Stats = {}
        pixels: dict[str, Array] = {}
        for name, values in self._arrays().items():
            key, _, which = name.rpartition("/")
            if which == "pixels":
                pixels[key] = values
            else:
                stats.setdefault(key, {})[which] = values
        return stats, pixels

    def _arrays(self) -> dict[str, Array]:
        """Return the arrays of the statistics' file."""
        old = self.folder / _OLD_STATS
        if old.exists():
            with np.load(old) as arrays:
                return dict(arrays)
        told = json.loads(read_regular_file(self.folder / _STATS))
        return {name: np.array(values, dtype) for name, (dtype, values) in told.items()}

    def remove(self) -> None:
        """Remove its folder."""
        shutil.rmtree(self.folder)


def read_staged_episode(folder: Path) -> StagedEpisode:
    """Return the staged episode in ``folder``."""
    try:
        said = json.loads(read_regular_file(folder / _SAID))
        return StagedEpisode(folder, int(said["length"]), tuple(said["tasks"]), said.get("start"))
    except (OSError, ValueError, KeyError, TypeError):
        raise DatasetError(
            f"{folder} has no finished episode", code="dataset.no-staged-episode"
        ) from None


class StagedEpisodeWriter:
    """Records an episode into its own folder, invisible to readers of the dataset."""

    def __init__(self, folder: Path, info: Info, codec: Codec) -> None:
        """Start an episode in ``folder``, which must not exist yet.

        Raises:
            DatasetError: the folder exists, or a feature cannot be recorded.
            OSError: it cannot be written.
        """
        refuse_unwritable(info)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise DatasetError(
                f"{folder} exists: a staged episode needs a new folder", code="dataset.exists"
            ) from None
        self._folder, self._info, self._codec = folder, info, codec
        self._numbers = [key for key in own_features(info) if key not in info.cameras]
        self._pngs = {key: PngEncoder(*info.shape(key)) for key in info.image_keys}
        self._videos: dict[str, VideoEncoder] = {}
        depths = [key for key in info.video_keys if info.is_depth(key)]
        self._depths = {key: DepthScale.of(info.entry(key)) for key in depths}
        self._pixels = {
            key: PixelCounts(N_CODES) if key in depths else PixelCounts() for key in info.cameras
        }
        columns = [*self._numbers, *info.image_keys]
        self._schema = pa.schema(
            [*((key, arrow_type(info, key)) for key in columns), (TASK, pa.string())]
        )
        self._file = (folder / _FRAMES).open("wb")
        self._stream = pa.ipc.new_stream(self._file, self._schema)
        self._batch: dict[str, list[Any]] = {key: [] for key in self._schema.names}
        self._tasks: dict[str, None] = {}
        self.length = 0

    def add_frame(self, frame: Mapping[str, Any], task: str) -> None:
        """Add one frame: an array per feature (images uint8 [H, W, C]), or a string.

        Depth images are float32 metres or uint16 millimetres [H, W, 1], by the feature's
        ``depth_unit``; 0 means not measured.

        Raises:
            DatasetError: it does not match the features; the episode is unchanged.
            OSError: it cannot be written; only ``discard`` may follow.
        """
        if not isinstance(task, str) or not task:
            raise DatasetError(
                f"task: expected a string, got {task!r:.60}", code="dataset.wrong-value"
            )
        values = checked_frame(self._info, frame)
        values |= {key: scale.encode(values[key]) for key, scale in self._depths.items()}
        for key in self._info.cameras:
            self._pixels[key].add(values[key])
        for key in self._info.video_keys:
            self._video(key).add(values[key])
        for key, encoder in self._pngs.items():
            png = {"bytes": encoder.encode(values[key]), "path": f"frame-{self.length:06d}.png"}
            self._batch[key].append(png)
        for key in self._numbers:
            self._batch[key].append(values[key])
        self._batch[TASK].append(task)
        self._tasks.setdefault(task)
        self.length += 1
        if len(self._batch[TASK]) == _BATCH:
            self._write_batch()

    def finish(self, start: str | None = None) -> StagedEpisode:
        """Finish the episode; when this returns, it is on the disk.

        ``start`` says where it started (``proctor.starts.DemonstrationStart``).

        Raises:
            DatasetError: it has no frame, or a video lacks frames.
            OSError: it cannot be written.
        """
        if not self.length:
            self.discard()
            raise DatasetError("an episode needs at least one frame", code="dataset.empty-episode")
        self._write_batch()
        self._stream.close()
        self._file.flush()
        sync(self._file.fileno())
        self._file.close()
        for key, video in self._videos.items():
            video.finish()
            self._check_video(key)
        take = StagedEpisode(self._folder, self.length, tuple(self._tasks), start)
        self._write_stats(take)
        said = {"length": take.length, "tasks": list(take.tasks), "start": start}
        atomic_write(self._folder / _SAID, json.dumps(said).encode())
        sync_folder(self._folder.parent)
        return take

    def discard(self) -> None:
        """Remove the unfinished episode."""
        try:
            for video in self._videos.values():
                video.abandon()
        finally:
            self._file.close()
            shutil.rmtree(self._folder)

    def _video(self, key: str) -> VideoEncoder:
        if key not in self._videos:
            height, width, _ = self._info.shape(key)
            path, fps = self._folder / f"{key}.mp4", self._info.fps
            self._videos[key] = (
                DepthEncoder(path, fps, height, width)
                if key in self._depths
                else VideoEncoder(path, self._codec, fps, height, width)
            )
        return self._videos[key]

    def _write_batch(self) -> None:
        if not self._batch[TASK]:
            return
        arrays = [as_arrow(self._batch[field.name], field.type) for field in self._schema]
        self._stream.write_batch(pa.record_batch(arrays, schema=self._schema))
        for values in self._batch.values():
            values.clear()

    def _check_video(self, key: str) -> None:
        found = probe(self._folder / f"{key}.mp4").n_frames
        if found != self.length:
            raise DatasetError(
                f"{key}: its video has {found} of {self.length} frames",
                code="video.missing-frame",
            )

    def _write_stats(self, take: StagedEpisode) -> None:
        table = take.table()
        counted = set(features_with_stats(self._info.features))
        stats: dict[str, FeatureStats] = {
            key: array_stats(column_to_array(take.folder, self._info, key, table[key]))
            for key in self._numbers
            if key in counted
        }
        arrays: dict[str, Array] = {}
        for key, counts in self._pixels.items():
            if key in self._depths:
                stats[key] = self._depth_stats(key, counts)
            else:
                stats[key] = counts.stats()
                arrays[f"{key}/pixels"] = counts.sampled()
        for key, entry in stats.items():
            arrays |= {f"{key}/{name}": value for name, value in entry.items()}
        said = {name: (array.dtype.str, array.tolist()) for name, array in arrays.items()}
        with (self._folder / _STATS).open("wb") as file:
            file.write(json.dumps(said).encode())
            file.flush()
            sync(file.fileno())

    def _depth_stats(self, key: str, counts: PixelCounts) -> FeatureStats:
        """Return the statistics of depth values in their unit, as readers get them."""
        unit = DepthUnit.of(key, self._info.entry(key))
        levels = self._depths[key].decode(np.arange(N_CODES), unit)
        return level_stats(counts.sampled(), levels, counts.n_sampled)
