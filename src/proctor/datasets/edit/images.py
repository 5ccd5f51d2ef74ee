"""Decode and encode the images of an episode, for edits that need pixels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.edit.edit_plan import KeptEpisode
from proctor.datasets.format.info import Info, data_file, video_file
from proctor.datasets.format.tables import (
    UNREADABLE,
    damaged_table_error,
    open_table,
    read_parts,
    refuse_oversized,
)
from proctor.datasets.frames.encoder import CODECS, Codec, VideoEncoder
from proctor.datasets.frames.images import decode_images
from proctor.datasets.frames.video import FrameReader, FrameRequest
from proctor.datasets.numbers.statistics import PixelCounts, sampled_frames
from proctor.errors import DatasetError
from proctor.features import Array

_AT_ONCE = 32
"""Frames per decoding call."""


def episode_images(
    kept: KeptEpisode, name: str, frames: Sequence[int] | None = None
) -> Iterator[Array]:
    """Yield images of camera ``name``, uint8 [H, W, C], of ``frames`` or of the whole episode."""
    wanted = range(kept.row.length) if frames is None else frames
    if kept.source.info.dtype(name) == "image":
        return _from_table(kept, name, wanted)
    if kept.source.info.is_depth(name):
        raise DatasetError(
            f"{name} is a depth video, which can only be copied",
            code="dataset.depth-not-copied",
        )
    return _from_video(kept, name, wanted)


def _from_video(kept: KeptEpisode, name: str, frames: Sequence[int]) -> Iterator[Array]:
    span, info = kept.row.videos[name], kept.source.info
    path = video_file(kept.source.root, info, name, span.chunk, span.file)
    reader = FrameReader(max_open=1, threads=1)  # episodes are decoded in parallel
    try:
        for start in range(0, len(frames), _AT_ONCE):
            requests = [
                FrameRequest(path, frame, info.fps, span.from_s + frame / info.fps)
                for frame in frames[start : start + _AT_ONCE]
            ]
            yield from reader.read(requests)
    finally:
        reader.close()


def _from_table(kept: KeptEpisode, name: str, frames: Sequence[int]) -> Iterator[Array]:
    source = kept.source
    path = data_file(source.root, source.info, *kept.row.data)
    file = open_table(path)
    refuse_oversized(path, file.metadata, ["episode_index", name])
    numbers = read_parts(path, file, ["episode_index"])["episode_index"].to_numpy()
    rows = np.flatnonzero(numbers == kept.row.index)
    if len(rows) != kept.row.length:
        raise DatasetError(
            f"{path} has {len(rows)} rows of episode {kept.row.index}, expected {kept.row.length}",
            code="dataset.wrong-length",
        )
    height, width, channels = source.info.shape(name)
    for contents in _contents(path, file, name, rows[list(frames)]):
        yield from decode_images(f"{path}: {name}", contents, (height, width, channels))


def _contents(path: Path, file: Any, name: str, rows: Array) -> Iterator[list[Any]]:
    """Yield the encoded images in ``rows``, in batches; only their row groups are read."""
    start = 0
    for group in range(file.metadata.num_row_groups):
        stop = start + file.metadata.row_group(group).num_rows
        inside = rows[(rows >= start) & (rows < stop)] - start
        start = stop
        if not len(inside):
            continue
        try:
            column = file.read_row_group(group, columns=[name], use_threads=False)[name]
        except UNREADABLE as error:
            raise damaged_table_error(path, error) from None
        for first in range(0, len(inside), _AT_ONCE):
            cells = [column[int(row)].as_py() for row in inside[first : first + _AT_ONCE]]
            yield [(cell or {}).get("bytes") for cell in cells]


def encode(pictures: Iterator[Array], path: Path, codec: Codec, fps: int) -> Array:
    """Encode images as a video; return the pixel counts [C, 256] of the sampled images.

    Raises:
        DatasetError: the codec cannot encode them.
        OSError: the file cannot be written.
    """
    first = next(pictures)
    video = VideoEncoder(path, codec, fps, *first.shape[:2])
    counts = PixelCounts()
    try:
        for picture in itertools.chain([first], pictures):
            video.add(picture)
            counts.add(picture)
    except BaseException:
        video.abandon()
        raise
    video.finish()
    return counts.sampled()


def count_pixel_levels(kept: KeptEpisode, name: str) -> Array:
    """Return the pixel counts [C, 256] of an episode's sampled images."""
    found: list[Array] = []
    for picture in episode_images(kept, name, sampled_frames(kept.row.length).tolist()):
        counts = PixelCounts()
        counts.add(picture)
        found.append(counts.sampled())
    total: Array = np.stack(found).sum(axis=0, dtype=np.int64)
    return total


def recorded_camera_codec(info: Info, name: str) -> Codec:
    """Return the codec of a camera's videos, as far as info.json states it."""
    block = info.entry(name).get("info") or info.entry(name).get("video_info") or {}
    codec = CODECS.get(str(block.get("video.codec")), Codec())
    said = {ours: block.get(f"video.{ours}") for ours in ("pix_fmt", "g", "crf", "preset")}
    return replace(codec, **{key: value for key, value in said.items() if value is not None})
