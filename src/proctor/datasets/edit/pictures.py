"""The pictures of an episode one by one, for edits that have to look at them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from proctor.datasets.edit.recipe import Kept
from proctor.datasets.encoder import CODECS, Codec, VideoEncoder
from proctor.datasets.format import data_file, video_file
from proctor.datasets.info import Info
from proctor.datasets.pictures import decode_pictures
from proctor.datasets.statistics import PixelCounts, sampled_frames
from proctor.datasets.tables import read_table
from proctor.datasets.video import FrameReader, FrameRequest
from proctor.errors import DatasetError
from proctor.features import Array

_AT_ONCE = 32
"""Frames that are decoded together."""


def pictures_of(kept: Kept, name: str, frames: Sequence[int] | None = None) -> Iterator[Array]:
    """Yield pictures of camera ``name`` of an episode, uint8 [H, W, C]; None: of all its frames.

    Raises:
        DatasetError: they are missing, damaged or distances.
    """
    wanted = range(kept.row.length) if frames is None else frames
    if kept.source.info.dtype(name) == "image":
        return _from_table(kept, name, wanted)
    if kept.source.info.is_depth(name):
        raise DatasetError(f"{name} shows distances, which only copying leaves as they are")
    return _from_video(kept, name, wanted)


def _from_video(kept: Kept, name: str, frames: Sequence[int]) -> Iterator[Array]:
    span, info = kept.row.videos[name], kept.source.info
    path = video_file(kept.source.root, info, name, span.chunk, span.file)
    reader = FrameReader(max_open=1)
    try:
        for start in range(0, len(frames), _AT_ONCE):
            requests = [
                FrameRequest(path, frame, info.fps, span.from_s + frame / info.fps)
                for frame in frames[start : start + _AT_ONCE]
            ]
            yield from reader.read(requests)
    finally:
        reader.close()


def _from_table(kept: Kept, name: str, frames: Sequence[int]) -> Iterator[Array]:
    source = kept.source
    path = data_file(source.root, source.info, *kept.row.data)
    table = read_table(path, ["episode_index", name])
    rows = np.flatnonzero(table["episode_index"].to_numpy() == kept.row.index)
    if len(rows) != kept.row.length:
        raise DatasetError(f"{path} has {len(rows)} rows of episode {kept.row.index}")
    where, shape = f"{path}: {name}", source.info.feature(name).shape
    for start in range(0, len(frames), _AT_ONCE):
        chosen = [int(rows[frame]) for frame in frames[start : start + _AT_ONCE]]
        files = [(table[name][row].as_py() or {}).get("bytes") for row in chosen]
        yield from decode_pictures(where, files, (shape[0], shape[1], shape[2]))


def encode(pictures: Iterator[Array], path: Path, codec: Codec, fps: int) -> Array:
    """Make a video of pictures; return how often each level was seen [C, 256], of those sampled.

    Raises:
        DatasetError: the codec cannot take them.
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


def count_pictures(kept: Kept, name: str) -> Array:
    """Return how often each level is seen [C, 256] in the pictures that statistics look at."""
    found: list[Array] = []
    for picture in pictures_of(kept, name, sampled_frames(kept.row.length).tolist()):
        counts = PixelCounts()
        counts.add(picture)
        found.append(counts.sampled())
    total: Array = np.stack(found).sum(axis=0, dtype=np.int64)
    return total


def codec_of(info: Info, name: str) -> Codec:
    """Return how the videos of a camera were encoded, as far as info.json says."""
    block = info.entry(name).get("info") or info.entry(name).get("video_info") or {}
    codec = CODECS.get(str(block.get("video.codec")), Codec())
    said = {ours: block.get(f"video.{ours}") for ours in ("pix_fmt", "g", "crf", "preset")}
    return replace(codec, **{key: value for key, value in said.items() if value is not None})
