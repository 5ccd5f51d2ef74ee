"""Decode whole videos to find broken frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from proctor.datasets.frames.decoder import open_video
from proctor.errors import DatasetError, strip_control_codes


@dataclass
class MeanColours:
    """The mean colour of a sample of a camera's decoded images."""

    total: npt.NDArray[np.float64] | float = 0.0
    pictures: int = 0
    """Number of images in the mean."""
    decoded: int = 0
    """Number of the episodes' images that were decoded without an error."""

    def add(self, picture: npt.NDArray[np.uint8]) -> None:
        """Add one image, uint8 [H, W, C]."""
        self.total = self.total + picture.mean(axis=(0, 1)) / 255
        self.pictures += 1

    def mean(self) -> npt.NDArray[np.float64] | None:
        """Return the mean per channel, from 0 to 1; None without images."""
        return None if self.pictures == 0 else np.asarray(self.total) / self.pictures


@dataclass
class DecodedVideo:
    """The result of decoding a video: the number of frames, and the broken ones."""

    frames: int = 0
    """Number of the last decoded frame, plus one."""
    broken: set[int] = field(default_factory=set)
    reason: str = ""
    """The decoder's error for the first broken frame."""


def decode_all(path: Path, fps: int, colours: MeanColours, looked_at: set[int]) -> DecodedVideo:
    """Decode a whole file; frame i is at i / ``fps``. Add the colours of frames ``looked_at``.

    A file that cannot be opened has no frames.
    """
    seen = DecodedVideo()
    times: list[int] = []
    try:
        with open_video(path) as (container, stream):
            stream.thread_type = "AUTO"
            for packet in container.demux(stream):
                for frame in _frames(packet, seen):
                    number = round(float(frame.pts * frame.time_base) * fps)
                    times.append(number)
                    if frame.is_corrupt:
                        seen.broken.add(number)
                    elif number in looked_at:
                        colours.add(frame.to_ndarray(format="rgb24"))
    except (DatasetError, ValueError) as error:
        seen.reason = seen.reason or strip_control_codes(str(error), 120)
    seen.frames = max(times) + 1 if times else 0
    seen.broken |= set(range(seen.frames)) - set(times)
    return seen


def _frames(packet: Any, seen: DecodedVideo) -> list[Any]:
    import av

    try:
        return [frame for frame in packet.decode() if frame.pts is not None]
    except av.FFmpegError as error:
        seen.reason = seen.reason or strip_control_codes(error.strerror or str(error), 120)
        return []  # missing frames are found when the others are decoded
