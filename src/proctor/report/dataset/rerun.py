"""Export episodes of a dataset as a Rerun recording (needs the extra ``rerun``)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.reader import open as open_dataset
from proctor.datasets.reading.dataset import Dataset
from proctor.errors import UsageError
from proctor.report.dataset.data import plotted_features
from proctor.report.dataset.media import extract_mp4, jpeg_frames, video_segment
from proctor.report.dataset.summary import DatasetSummary
from proctor.report.dataset.tables import component_names
from proctor.system.files import UNFINISHED, publish
from proctor.system.platform.optional import LOAD_ERRORS, import_failure

_VIDEOS = ("av1", "h264", "hevc")
"""Codecs that Rerun's viewer decodes itself or with FFmpeg; other cameras become images."""
_BATCH_SIZE = 32
"""Frames that are decoded at a time."""


def write_rerun(summary: DatasetSummary, output: Path, episodes: Sequence[int]) -> None:
    """Write episodes: numeric features as curves, cameras as videos copied without encoding."""
    try:
        import rerun
    except LOAD_ERRORS as error:
        raise import_failure(error, "rerun", "rerun", "rerun-sdk") from None
    unfinished = output.with_name(output.name + UNFINISHED)
    # Without a recording id, Rerun asks the system for the user's name.
    stream = rerun.RecordingStream("proctor_dataset", recording_id=summary.name)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        unfinished.touch()  # fails here with a clear OSError, not inside Rerun
        stream.save(str(unfinished))
        for episode in episodes:
            _Episode(rerun, stream, summary, episode).write()
        stream.flush()
        stream.disconnect()
        publish(unfinished, output)
    except OSError as error:
        raise UsageError(
            f"cannot write {output}: {error.strerror or error}", code="disk.write-failed"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


class _Episode:
    """Writes one episode: its entities are below its name, times start at 0."""

    def __init__(self, rerun: Any, stream: Any, summary: DatasetSummary, episode: int) -> None:
        self._rerun, self._stream, self._facts, self._episode = rerun, stream, summary, episode
        self._dataset: Dataset = open_dataset(summary.root, episodes=[episode])

    def write(self) -> None:
        self._numbers()
        self._tasks()
        for camera in self._facts.cameras:
            video = None
            if camera.codec in _VIDEOS and not camera.is_depth:
                video = extract_mp4(video_segment(self._dataset, self._episode, camera.key))
            if video is not None:
                self._video(camera.key, video)
            else:
                self._images(camera.key)

    def _path(self, key: str) -> str:
        path: str = self._rerun.new_entity_path([f"episode {self._episode}", key])
        return path

    def _times(self, frames: Sequence[int]) -> list[Any]:
        """Return the two timelines of frames: frame number and seconds."""
        seconds = np.asarray(frames) / self._facts.info.fps
        return [
            self._rerun.TimeColumn("frame", sequence=list(frames)),
            self._rerun.TimeColumn("time", duration=seconds),
        ]

    def _numbers(self) -> None:
        frames = range(len(self._dataset))
        keys = plotted_features(self._dataset)
        found = self._dataset.batch(list(frames), keys=keys)
        for key in keys:
            values = np.asarray(found[key], np.float64).reshape(len(frames), -1)
            names = component_names(self._facts, key, values.shape[1])
            shown = [name or key for name in names]
            path = self._path(key)
            self._stream.log(path, self._rerun.SeriesLines(names=shown), static=True)
            columns = self._rerun.Scalars.columns(scalars=values)
            self._stream.send_columns(path, self._times(frames), columns)

    def _tasks(self) -> None:
        tasks = self._dataset.batch(list(range(len(self._dataset))), keys=[])["task"]
        changes = [i for i in range(len(tasks)) if i == 0 or tasks[i] != tasks[i - 1]]
        columns = self._rerun.TextLog.columns(text=[tasks[i] for i in changes])
        self._stream.send_columns(self._path("task"), self._times(changes), columns)

    def _video(self, key: str, content: bytes) -> None:
        asset = self._rerun.AssetVideo(contents=content, media_type="video/mp4")
        path = self._path(key)
        self._stream.log(path, asset, static=True)
        shown = asset.read_frame_timestamps_nanos()
        columns = self._rerun.VideoFrameReference.columns_nanos(shown)
        self._stream.send_columns(path, self._times(range(len(shown))), columns)

    def _images(self, key: str) -> None:
        for start in range(0, len(self._dataset), _BATCH_SIZE):
            frames = range(start, min(start + _BATCH_SIZE, len(self._dataset)))
            files = jpeg_frames(self._dataset, key, frames)
            columns = self._rerun.EncodedImage.columns(
                blob=files, media_type=["image/jpeg"] * len(files)
            )
            self._stream.send_columns(self._path(key), self._times(frames), columns)
