"""One episode in a folder of its own, complete before it is part of any dataset.

    take/
      frames.arrow            the numbers, texts and PNG pictures of every frame, and its task
      <video key>.mp4         encoded as the frames came
      stats.npz               statistics, and how often each level was seen in sampled pictures
      take.json               written last: what has none is not finished

A take knows neither its number nor the episodes around it, so that it can be made anywhere (in a
worker, say) and put into a dataset by somebody else, or thrown away without a trace.
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
_FRAMES, _STATS, _SAID = "frames.arrow", "stats.npz", "take.json"
_BATCH = 64
"""Frames that are held in memory before they are written down."""


@dataclass(frozen=True)
class StagedEpisode:
    """A finished episode that lies in ``folder``; picklable, and as good as its path."""

    folder: Path
    length: int
    tasks: tuple[str, ...]
    """What its frames say, each once, in order of appearance."""

    @property
    def nbytes(self) -> int:
        """Bytes of its frames, without videos: what is in memory while it is put somewhere."""
        return (self.folder / _FRAMES).stat().st_size

    def table(self) -> pa.Table:
        """Return its frames: the columns of the dataset's own features, and each frame's task."""
        with pa.memory_map(str(self.folder / _FRAMES)) as file:
            return pa.ipc.open_stream(file).read_all()

    def video(self, key: str) -> Path:
        """Return the video of camera ``key``."""
        return self.folder / f"{key}.mp4"

    def stats(self) -> tuple[Stats, dict[str, Array]]:
        """Return the statistics of its features, and counts [C, 256] of each camera's levels."""
        stats: Stats = {}
        pixels: dict[str, Array] = {}
        with np.load(self.folder / _STATS) as arrays:
            for name in arrays.files:
                key, _, which = name.rpartition("/")
                if which == "pixels":
                    pixels[key] = arrays[name]
                else:
                    stats.setdefault(key, {})[which] = arrays[name]
        return stats, pixels

    def remove(self) -> None:
        """Leave nothing of it."""
        shutil.rmtree(self.folder)


def read_staged_episode(folder: Path) -> StagedEpisode:
    """Return the take that lies in ``folder``.

    Raises:
        DatasetError: there is none, or it was never finished.
    """
    try:
        said = json.loads(read_regular_file(folder / _SAID))
        return StagedEpisode(folder, int(said["length"]), tuple(said["tasks"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise DatasetError(
            f"{folder} holds no finished take", code="dataset.no-staged-episode"
        ) from None


class StagedEpisodeWriter:
    """An episode that is being recorded. Nothing of it is seen by any reader."""

    def __init__(self, folder: Path, info: Info, codec: Codec) -> None:
        """Begin a take in ``folder``, which must not exist yet.

        Raises:
            DatasetError: the folder exists, or a feature cannot be recorded.
            OSError: it cannot be written.
        """
        refuse_unwritable(info)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise DatasetError(
                f"{folder} exists: a take needs a folder of its own", code="dataset.exists"
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
        """Add one frame: an array for each feature (pictures uint8 [H, W, C]), a text for texts.

        Distances are float32 metres or uint16 millimetres [H, W, 1], as the feature's
        ``depth_unit`` says; what was not measured is 0.

        Raises:
            DatasetError: it is not what the features say; the take is as if it had not come.
            OSError: the disk did not take it: the take is good for ``discard`` only.
        """
        if not isinstance(task, str) or not task:
            raise DatasetError(
                f"task: expected a text, got {task!r:.60}", code="dataset.wrong-value"
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

    def finish(self) -> StagedEpisode:
        """Complete the take; once this returns it is on the disk.

        Raises:
            DatasetError: it has no frame, or a video lost some.
            OSError: the disk did not take it.
        """
        if not self.length:
            self.discard()
            raise DatasetError("an episode needs one frame at least", code="dataset.empty-episode")
        self._write_batch()
        self._stream.close()
        self._file.flush()
        sync(self._file.fileno())
        self._file.close()
        for key, video in self._videos.items():
            video.finish()
            self._check_video(key)
        take = StagedEpisode(self._folder, self.length, tuple(self._tasks))
        self._write_stats(take)
        said = {"length": take.length, "tasks": list(take.tasks)}
        atomic_write(self._folder / _SAID, json.dumps(said).encode())
        sync_folder(self._folder.parent)
        return take

    def discard(self) -> None:
        """Leave nothing of the take."""
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
                f"{key}: {found} of {self.length} frames are in its video",
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
        with (self._folder / _STATS).open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            sync(file.fileno())

    def _depth_stats(self, key: str, counts: PixelCounts) -> FeatureStats:
        """Return the statistics of distances, in their unit, as readers get them."""
        unit = DepthUnit.of(key, self._info.entry(key))
        levels = self._depths[key].decode(np.arange(N_CODES), unit)
        return level_stats(counts.sampled(), levels, counts.n_sampled)
