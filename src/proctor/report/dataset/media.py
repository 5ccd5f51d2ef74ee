"""The images of an episode for a page: its segment of a video, or single JPEG files."""

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

BROWSER_CODECS = ("av1", "h264", "vp8", "vp9")
"""Video codecs that every browser plays. Only some play HEVC; depth videos are never played."""
_QUALITY = 4
"""JPEG quality on FFmpeg's scale, from 1 (best) to 31."""
Image = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class VideoSegment:
    """The frames of one episode in a video file: ``first`` to before ``end``."""

    path: Path
    first: int
    end: int


def video_segment(dataset: Dataset, episode: int, key: str) -> VideoSegment:
    """Return the segment of a camera's video that holds an episode."""
    row = dataset.episodes[episode]
    span = row.videos[key]
    path = video_file(dataset.root, dataset.info, key, span.chunk, span.file)
    first = round(span.from_s * dataset.info.fps)
    return VideoSegment(path, first, first + row.length)


def extract_mp4(part: VideoSegment) -> bytes | None:
    """Return an mp4 of these frames, copied without encoding.

    None if the segment does not start at a keyframe and would have to be encoded.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episode.mp4"
        try:
            extract(part.path, [(part.first, part.end)], path)
        except NotAtKeyFrame:
            return None
        return path.read_bytes()


def jpeg_frames(
    dataset: Dataset, key: str, frames: Sequence[int], longest: int | None = None
) -> list[bytes]:
    """Return frames of an episode as JPEG files; ``dataset`` was opened for this episode alone.

    ``longest`` limits the longer side in pixels. Depth becomes shades of grey, near is dark.
    """
    found: npt.NDArray[Any] = dataset.batch(list(frames), keys=[key])[key]
    if found.dtype != np.uint8:
        reach = float(found.max()) or 1.0
        found = (found * (255 / reach)).clip(0, 255).astype(np.uint8)
    return [jpeg(image, longest) for image in found]


def jpeg(image: Image, longest: int | None = None) -> bytes:
    """Encode an image, uint8 [H, W, C], as JPEG; ``longest`` limits its longer side in pixels."""
    import av

    grey = image.shape[2] == 1
    plane = image[:, :, 0] if grey else image[:, :, :3]
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
