"""Frame sources: the images of one camera, from videos or from data files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from proctor.datasets.format.episodes import Episodes
from proctor.datasets.format.info import Info, data_file, video_file
from proctor.datasets.frames.decoder import Pixels
from proctor.datasets.frames.depth import CODES
from proctor.datasets.frames.encoder import require_av
from proctor.datasets.frames.images import decode_images, pixel_format_for
from proctor.datasets.frames.video import FrameReader, FrameRequest
from proctor.datasets.numbers.store import FrameColumns
from proctor.datasets.reading.staleness import StalenessGuard
from proctor.errors import DatasetError
from proctor.features import Array


class FrameSource(Protocol):
    """The images of one camera, by episode and frame number."""

    def read(self, episodes: Array, frames: Array, threads: int | None = None) -> Array:
        """Return frame ``frames[i]`` of episode ``episodes[i]`` for every i, [n, H, W, C].

        Episodes are rows of the episodes table. ``threads`` limits the decoder's threads, for a
        caller that reads in several threads of its own.
        """

    @property
    def pixels(self) -> Pixels:
        """The meaning of the pixel values."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""

    @property
    def lengths(self) -> Array:
        """The number of frames of every episode."""

    def files(self, episodes: Array) -> list[Path]:
        """Return the files that hold the images of ``episodes``, without duplicates."""

    def fingerprint(self) -> str:
        """Return a text that differs if the same files would give other images."""


def image_shape(info: Info, key: str, size: tuple[int, int] | None) -> tuple[int, int, int]:
    """Return height, width and channels of a camera's images, resized to ``size``."""
    height, width, channels = info.shape(key)
    if key in info.video_keys:
        pixels = _video_pixels(info, key, size)
        size, channels = pixels.size, pixels.channels
    return (*(size or (height, width)), channels)


def _video_pixels(info: Info, key: str, size: tuple[int, int] | None) -> Pixels:
    """Return the pixel kind: colours, or depth codes, which are never resized."""
    return CODES if info.is_depth(key) else Pixels(size=size)


@dataclass(frozen=True)
class VideoSource:
    """A camera stored as videos; a depth camera gives depth codes (see frames/depth.py)."""

    root: Path
    info: Info
    episodes: Episodes
    key: str
    size: tuple[int, int] | None = None
    """Height and width that images are resized to; depth images never are."""
    reader: FrameReader = field(default_factory=FrameReader)
    guard: StalenessGuard | None = None
    """Detects edits of the dataset while it is read."""

    @property
    def pixels(self) -> Pixels:
        """Colours, or depth codes."""
        return _video_pixels(self.info, self.key, self.size)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        return image_shape(self.info, self.key, self.size)

    @property
    def lengths(self) -> Array:
        """The number of frames of every episode."""
        return self.episodes.length

    def files(self, episodes: Array) -> list[Path]:
        """Return the videos of ``episodes``, without duplicates."""
        spans = self.episodes.videos[self.key]
        places = _places(spans.chunk[episodes], spans.file[episodes])
        return [video_file(self.root, self.info, self.key, *place) for place in places]

    def fingerprint(self) -> str:
        """Return a text that differs if the same files would give other images."""
        spans = self.episodes.videos[self.key]
        return _told(
            (self.pixels, self.info.fps), (self.lengths, spans.chunk, spans.file, spans.from_s)
        )

    def read(self, episodes: Array, frames: Array, threads: int | None = None) -> Array:
        """Return images; see ``FrameSource.read``."""
        spans, fps = self.episodes.videos[self.key], self.info.fps
        times = spans.from_s[episodes] + frames / fps
        chunks, files = spans.chunk[episodes].tolist(), spans.file[episodes].tolist()
        paths = {
            pair: video_file(self.root, self.info, self.key, *pair)
            for pair in set(zip(chunks, files, strict=True))
        }
        requests = [
            FrameRequest(paths[chunk, file], round(time * fps), fps, time)
            for chunk, file, time in zip(chunks, files, times.tolist(), strict=True)
        ]
        pictures = self.reader.read(requests, self.pixels, threads)
        if self.guard is not None:
            self.guard.check(quick=True)
        if pictures.shape[1:] != self.shape:
            raise DatasetError(
                f"{requests[0].path} has images of {pictures.shape[2]}x{pictures.shape[1]}, "
                f"meta/info.json says {self.shape[1]}x{self.shape[0]}",
                code="dataset.wrong-image-size",
            )
        return pictures


@dataclass(frozen=True)
class TableSource:
    """A camera stored as PNG or JPEG files inside the data files."""

    root: Path
    info: Info
    episodes: Episodes
    key: str
    columns: FrameColumns
    first_row: Array
    """First row of every episode in ``columns``; -1 for episodes that are not read."""
    size: tuple[int, int] | None = None
    is_cached: bool = False
    """Whether each image is read once, for a cache, so that encoded images need no memory."""

    @property
    def pixels(self) -> Pixels:
        """Colours."""
        return pixel_format_for(self._where, self.info.shape(self.key)[2], self.size)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        return image_shape(self.info, self.key, self.size)

    @property
    def lengths(self) -> Array:
        """The number of frames of every episode."""
        return self.episodes.length

    def files(self, episodes: Array) -> list[Path]:
        """Return the data files of ``episodes``, without duplicates."""
        places = _places(self.episodes.data_chunk[episodes], self.episodes.data_file[episodes])
        return [data_file(self.root, self.info, *place) for place in places]

    def fingerprint(self) -> str:
        """Return a text that differs if the same files would give other images."""
        episodes = self.episodes
        return _told(
            (self.key, self.pixels),
            (self.lengths, episodes.data_chunk, episodes.data_file, episodes.from_index),
        )

    def read(self, episodes: Array, frames: Array, threads: int | None = None) -> Array:
        """Return images; see ``FrameSource.read``."""
        rows = self.first_row[episodes] + frames
        read = self.columns.read_images
        files = read(self.key, rows) if self.is_cached else self.columns[self.key].take(rows)
        height, width, channels = self.info.shape(self.key)
        return decode_images(self._where, files, (height, width, channels), self.size, threads)

    @property
    def _where(self) -> str:
        return f"{self.root}, column {self.key}"


def _places(chunks: Array, files: Array) -> list[tuple[int, int]]:
    """Return the distinct pairs of chunk and file, in order of appearance."""
    return list(dict.fromkeys(zip(chunks.tolist(), files.tolist(), strict=True)))


def _told(words: tuple[object, ...], columns: Sequence[Array]) -> str:
    require_av()
    import av

    told = hashlib.sha256(repr((av.__version__, *words)).encode())
    for column in columns:
        told.update(np.ascontiguousarray(column).tobytes())
    return told.hexdigest()
