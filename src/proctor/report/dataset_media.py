"""The pictures of an episode for a page: its part of a video, or single pictures."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from proctor.datasets.format.info import video_file
from proctor.datasets.frames.packets import NotAtKeyFrame, extract
from proctor.datasets.reading.dataset import Dataset

PLAYABLE = ("av1", "h264", "vp8", "vp9")
"""What browsers play; HEVC only some, and depth none."""
_QUALITY = 4
"""Of JPEG, FFmpeg's scale from 1 (best) to 31."""
Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class OnePart:
    """One episode in one video: the file, and which of its frames."""

    path: Path
    first: int
    end: int


def part_of(dataset: Dataset, episode: int, key: str) -> OnePart:
    """Return where the frames of an episode lie in a camera's videos."""
    row = dataset.episodes[episode]
    span = row.videos[key]
    path = video_file(dataset.root, dataset.info, key, span.chunk, span.file)
    first = round(span.from_s * dataset.info.fps)
    return OnePart(path, first, first + row.length)


def cut_out(part: OnePart) -> bytes | None:
    """Return an mp4 of these frames alone, copied; None where they cannot be without encoding.

    Raises:
        DatasetError: the video is missing, damaged or too short.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episode.mp4"
        try:
            extract(part.path, [(part.first, part.end)], path)
        except NotAtKeyFrame:
            return None
        return path.read_bytes()


def pictures(
    dataset: Dataset, key: str, frames: Sequence[int], longest: int | None = None
) -> list[bytes]:
    """Return frames of the only episode that ``dataset`` was opened for, as JPEG files.

    ``longest`` bounds their longer side. Distances become shades of grey, near is dark.

    Raises:
        DatasetError: a file is missing or damaged.
    """
    found: npt.NDArray[Any] = dataset.batch(list(frames), keys=[key])[key]
    if found.dtype != np.uint8:
        reach = float(found.max()) or 1.0
        found = (found * (255 / reach)).clip(0, 255).astype(np.uint8)
    return [jpeg(picture, longest) for picture in found]


def jpeg(picture: Picture, longest: int | None = None) -> bytes:
    """Return a JPEG file of a picture, uint8 [H, W, C]; ``longest`` bounds its longer side."""
    import av

    grey = picture.shape[2] == 1
    plane = picture[:, :, 0] if grey else picture[:, :, :3]
    frame: Any = av.VideoFrame.from_ndarray(
        np.ascontiguousarray(plane), format="gray" if grey else "rgb24"
    )
    shrunk = min(1.0, (longest or frame.width) / max(frame.width, frame.height))
    width, height = (max(2, round(side * shrunk)) for side in (frame.width, frame.height))
    frame = frame.reformat(width, height, "yuvj420p")
    context: Any = av.CodecContext.create("mjpeg", "w")
    context.width, context.height, context.pix_fmt = width, height, "yuvj420p"
    context.time_base = 1
    context.options = {"qmin": str(_QUALITY), "qmax": str(_QUALITY)}
    return b"".join(bytes(packet) for packet in (*context.encode(frame), *context.encode(None)))
