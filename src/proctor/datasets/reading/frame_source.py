"""Where the pictures of a dataset come from, camera by camera: its videos or its tables."""

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
    """The pictures of one camera, by episode and number of the frame in it."""

    def read(self, episodes: Array, frames: Array, threads: int | None = None) -> Array:
        """Return frame ``frames[i]`` of episode ``episodes[i]`` for every i, [n, H, W, C].

        Episodes are rows of the table of episodes. ``threads`` decode them: for who reads on
        several of their own.

        Raises:
            DatasetError: a file is missing, damaged or not as the table of episodes says.
        """

    @property
    def pixels(self) -> Pixels:
        """What the numbers are."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of a picture."""

    @property
    def lengths(self) -> Array:
        """The number of frames of every episode."""

    def files(self, episodes: Array) -> list[Path]:
        """Return the files that the pictures of ``episodes`` lie in, each once."""

    def fingerprint(self) -> str:
        """Return a text that differs wherever other pictures are made of the same files."""


def image_shape(info: Info, key: str, size: tuple[int, int] | None) -> tuple[int, int, int]:
    """Return height, width and channels of a camera's pictures, scaled to ``size``."""
    height, width, channels = info.shape(key)
    if key in info.video_keys:
        pixels = _video_pixels(info, key, size)
        size, channels = pixels.size, pixels.channels
    return (*(size or (height, width)), channels)


def _video_pixels(info: Info, key: str, size: tuple[int, int] | None) -> Pixels:
    """Colours, or codes of distances, which are never scaled."""
    return CODES if info.is_depth(key) else Pixels(size=size)


@dataclass(frozen=True)
class VideoSource:
    """A camera whose pictures lie in videos. Of a depth camera it gives the codes (depth.py)."""

    root: Path
    info: Info
    episodes: Episodes
    key: str
    size: tuple[int, int] | None = None
    """Height and width that pictures are scaled to; those of depth cameras never are."""
    reader: FrameReader = field(default_factory=FrameReader)
    guard: StalenessGuard | None = None
    """Tells whether the videos are still those that ``episodes`` are of."""

    @property
    def pixels(self) -> Pixels:
        """Colours, or codes of distances."""
        return _video_pixels(self.info, self.key, self.size)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of a picture."""
        return image_shape(self.info, self.key, self.size)

    @property
    def lengths(self) -> Array:
        """The number of frames of every episode."""
        return self.episodes.length

    def files(self, episodes: Array) -> list[Path]:
        """Return the videos of ``episodes``, each once."""
        spans = self.episodes.videos[self.key]
        places = _places(spans.chunk[episodes], spans.file[episodes])
        return [video_file(self.root, self.info, self.key, *place) for place in places]

    def fingerprint(self) -> str:
        """Return a text that differs wherever other pictures are made of the same files."""
        spans = self.episodes.videos[self.key]
        return _told(
            (self.pixels, self.info.fps), (self.lengths, spans.chunk, spans.file, spans.from_s)
        )

    def read(self, episodes: Array, frames: Array, threads: int | None = None) -> Array:
        """Return the pictures; raises as every FrameSource."""
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
                f"{requests[0].path} has pictures of {pictures.shape[2]}x{pictures.shape[1]}, "
                f"meta/info.json says {self.shape[1]}x{self.shape[0]}",
                code="dataset.wrong-image-size",
            )
        return pictures


@dataclass(frozen=True)
class TableSource:
    """A camera whose pictures lie in the tables of frames, as files of their own."""

    root: Path
    info: Info
    episodes: Episodes
    key: str
    columns: FrameColumns
    first_row: Array
    """Of every episode of the dataset, its first row in ``columns``; -1 where it is not read."""
    size: tuple[int, int] | None = None

    @property
    def pixels(self) -> Pixels:
        """Colours."""
        return pixel_format_for(self._where, self.info.shape(self.key)[2], self.size)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of a picture."""
        return image_shape(self.info, self.key, self.size)

    @property
    def lengths(self) -> Array:
        """The number of frames of every episode."""
        return self.episodes.length

    def files(self, episodes: Array) -> list[Path]:
        """Return the tables of ``episodes``, each once."""
        places = _places(self.episodes.data_chunk[episodes], self.episodes.data_file[episodes])
        return [data_file(self.root, self.info, *place) for place in places]

    def fingerprint(self) -> str:
        """Return a text that differs wherever other pictures are made of the same files."""
        episodes = self.episodes
        return _told(
            (self.key, self.pixels),
            (self.lengths, episodes.data_chunk, episodes.data_file, episodes.from_index),
        )

    def read(self, episodes: Array, frames: Array, threads: int | None = None) -> Array:
        """Return the pictures; raises as every FrameSource."""
        files = self.columns[self.key].take(self.first_row[episodes] + frames)
        height, width, channels = self.info.shape(self.key)
        return decode_images(self._where, files, (height, width, channels), self.size, threads)

    @property
    def _where(self) -> str:
        return f"{self.root}, column {self.key}"


def _places(chunks: Array, files: Array) -> list[tuple[int, int]]:
    """Return chunks and files, each pair once, in order of appearance."""
    return list(dict.fromkeys(zip(chunks.tolist(), files.tolist(), strict=True)))


def _told(words: tuple[object, ...], columns: Sequence[Array]) -> str:
    require_av()
    import av

    told = hashlib.sha256(repr((av.__version__, *words)).encode())
    for column in columns:
        told.update(np.ascontiguousarray(column).tobytes())
    return told.hexdigest()
