"""Where the pictures of a dataset come from, camera by camera: its videos, or a cache of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from proctor.datasets.decoder import Pixels
from proctor.datasets.encoder import require_av
from proctor.datasets.episodes import Episodes
from proctor.datasets.info import Info, video_file
from proctor.datasets.video import FrameReader, FrameRequest
from proctor.features import Array


class FrameSource(Protocol):
    """The pictures of one camera, by episode and number of the frame in it."""

    def read(self, episodes: Array, frames: Array) -> Array:
        """Return frame ``frames[i]`` of episode ``episodes[i]`` for every i, [n, H, W, C].

        Episodes are rows of the table of episodes.

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

    @property
    def pixels(self) -> Pixels:
        """Colours, or codes of distances."""
        if self.info.is_depth(self.key):
            return Pixels("gray12le")
        return Pixels(size=self.size)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of a picture."""
        height, width, _ = self.info.shape(self.key)
        return (*(self.pixels.size or (height, width)), self.pixels.channels)

    @property
    def lengths(self) -> Array:
        """The number of frames of every episode."""
        return self.episodes.length

    def files(self, episodes: Array) -> list[Path]:
        """Return the videos of ``episodes``, each once."""
        spans = self.episodes.videos[self.key]
        places = zip(spans.chunk[episodes].tolist(), spans.file[episodes].tolist(), strict=True)
        pairs = dict.fromkeys(places)
        return [video_file(self.root, self.info, self.key, *pair) for pair in pairs]

    def fingerprint(self) -> str:
        """Return a text that differs wherever other pictures are made of the same files."""
        require_av()
        import av

        told = hashlib.sha256(repr((av.__version__, self.pixels, self.info.fps)).encode())
        spans = self.episodes.videos[self.key]
        for column in (self.lengths, spans.chunk, spans.file, spans.from_s):
            told.update(np.ascontiguousarray(column).tobytes())
        return told.hexdigest()

    def read(self, episodes: Array, frames: Array) -> Array:
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
        return self.reader.read(requests, self.pixels)
