"""Decode frames of an open video by their timestamp, forwards or by seeking."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.frames.encoder import require_av
from proctor.errors import DatasetError, strip_control_codes
from proctor.features import Array
from proctor.system.files import refuse_unreadable

_MOST_PIXELS = 2**26
"""Largest image in pixels; a file that claims more is damaged."""
_SAME_S = 1e-4
_FRAMES_OF_A_SEEK = 2
"""Frames that can be decoded in the time of a seek."""


_FORMATS = {
    "gray": ("uint8", 1),
    "rgb24": ("uint8", 3),
    "rgba": ("uint8", 4),
    "gray12le": ("uint16", 1),
}


@dataclass(frozen=True)
class Pixels:
    """The pixel format and size that frames are converted to."""

    format: str = "rgb24"
    """``rgb24``: uint8 [H, W, 3]; ``gray`` and ``rgba`` of 1 and 4; ``gray12le``: uint16."""
    size: tuple[int, int] | None = None
    """Height and width; None keeps the size. Area averaging gives the same result everywhere."""

    @property
    def dtype(self) -> str:
        """NumPy dtype of a pixel value."""
        return _FORMATS[self.format][0]

    @property
    def channels(self) -> int:
        """Values per pixel."""
        return _FORMATS[self.format][1]


def converted(reformatter: Any, frame: Any, pixels: Pixels) -> Array:
    """Return a PyAV frame as an array [H, W, C] in PyAV's memory, which the caller copies.

    NumPy copies without holding the interpreter lock, and PyAV does not.
    """
    height, width = pixels.size or (frame.height, frame.width)
    scaled = (height, width) != (frame.height, frame.width)
    how = _area() if scaled else None
    made = reformatter.reformat(frame, width, height, pixels.format, interpolation=how, threads=1)
    picture = _array_of(made, pixels)
    if not scaled and width % 2 and "yuv" in frame.format.name:
        # FFmpeg's fast path from yuv420p converts two columns at a time and leaves the last one
        # uninitialised, as LeRobot returns it.
        slow = scaler().reformat(
            frame, width, height, pixels.format, interpolation=_area(), threads=1
        )
        picture = picture.copy()
        picture[:, -1] = _array_of(slow, pixels)[:, -1]
    return picture


def _array_of(made: Any, pixels: Pixels) -> Array:
    plane, dtype = made.planes[0], np.dtype(pixels.dtype).newbyteorder("<")
    rows = np.frombuffer(plane, dtype).reshape(made.height, plane.line_size // dtype.itemsize)
    return rows[:, : made.width * pixels.channels].reshape(made.height, made.width, pixels.channels)


def _area() -> Any:
    from av.video.reformatter import Interpolation

    # Without the last two flags, rounding depends on the processor's instructions.
    return Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.BITEXACT


def scaler() -> Any:
    """Return a reformatter for ``converted``; keep one per thread."""
    from av.video.reformatter import VideoReformatter

    return VideoReformatter()


@contextlib.contextmanager
def open_video(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a video for reading; yields the container and its video stream."""
    import av

    container, stream = _open(path)
    try:
        yield container, stream
    except av.FFmpegError as error:
        raise damaged_video_error(path, error) from None
    finally:
        container.close()


def damaged_video_error(path: Path, error: Exception) -> DatasetError:
    """Return the error for a video that FFmpeg cannot read."""
    refuse_unreadable(path, error)
    said = getattr(error, "strerror", None) or str(error)
    return DatasetError(
        f"{path} is not a readable video ({strip_control_codes(said, 200)}): it is truncated or "
        "damaged; download it again, or leave out its episodes",
        code="video.damaged",
    )


def _open(path: Path) -> tuple[Any, Any]:
    require_av()
    import av

    if path.exists() and not path.is_file():  # opening a pipe would block
        raise DatasetError(f"{path} is not a regular file", code="video.damaged")
    try:
        # Only MP4: a playlist with this name could make FFmpeg open other files and URLs.
        container = av.open(f"file:{path}", format="mp4", metadata_errors="replace")
    except FileNotFoundError:
        raise DatasetError(
            f"{path} is missing: the dataset is not complete", code="video.missing"
        ) from None
    except (av.FFmpegError, OSError) as error:
        raise damaged_video_error(path, error) from None
    try:
        if not container.streams.video:
            raise DatasetError(f"{path} has no video stream", code="video.damaged")
        stream = container.streams.video[0]
        _check(path, stream)
    except BaseException:
        container.close()
        raise
    return container, stream


def _check(path: Path, stream: Any) -> None:
    context = stream.codec_context
    if context is None:
        raise DatasetError(
            f"{path}: this PyAV cannot decode its codec; install PyAV's own wheel "
            "(pip install --force-reinstall --only-binary av av)",
            code="video.codec-unavailable",
        )
    if not 0 < context.width * context.height <= _MOST_PIXELS:
        raise DatasetError(
            f"{path} is damaged: it claims images of {context.width}x{context.height}",
            code="video.damaged",
        )


class VideoDecoder:
    """An open video and its current position."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._container, self._stream = _open(path)
        # One thread each: several would decode frames ahead that are not needed.
        self._stream.codec_context.thread_count = 1
        self._stream.codec_context.thread_type = "NONE"
        self._reformatter = scaler()
        self._frames: Iterator[Any] = iter(())
        self._now: Any = None
        self.height: int = self._stream.codec_context.height
        self.width: int = self._stream.codec_context.width

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def read(self, wanted_s: float, tolerance_s: float, pixels: Pixels) -> Array:
        """Return the frame nearest to ``wanted_s``; copy it before the next call."""
        import av

        try:
            frame = self._nearest(wanted_s)
        except av.FFmpegError as error:
            raise damaged_video_error(self.path, error) from None
        away_s = float("inf") if frame is None else abs(frame.time - wanted_s)
        if away_s > tolerance_s:
            at = "there is none at all" if frame is None else f"the nearest is at {frame.time:g} s"
            raise DatasetError(
                f"{self.path} has no frame at {wanted_s:g} s: {at} (tolerance {tolerance_s:g} s)",
                code="video.missing-frame",
            )
        if (frame.height, frame.width) != (self.height, self.width):
            raise DatasetError(
                f"{self.path} is damaged: the size of its images changes", code="video.damaged"
            )
        return converted(self._reformatter, frame, pixels)

    def _nearest(self, wanted_s: float) -> Any:
        if self._now is not None and abs(self._now.time - wanted_s) <= _SAME_S:
            return self._now
        if self._now is None or self._now.time > wanted_s or not self._is_nearer(wanted_s):
            self._seek(wanted_s)
        before = self._now
        while (frame := next(self._frames, None)) is not None:
            if frame.pts is None:
                continue
            before, self._now = self._now, frame
            if frame.time >= wanted_s - _SAME_S:
                break
        candidates = [found for found in (before, self._now) if found is not None]
        return min(candidates, key=lambda found: abs(found.time - wanted_s), default=None)

    def _is_nearer(self, wanted_s: float) -> bool:
        """Tell whether decoding forwards costs about as much as seeking to a key frame."""
        entries, ticks = self._stream.index_entries, self._stream.time_base
        here = entries.search_timestamp(self._now.pts, any_frame=True)
        key = entries.search_timestamp(round((wanted_s + _SAME_S) / ticks))
        return bool(key - here <= _FRAMES_OF_A_SEEK)

    def _seek(self, wanted_s: float) -> None:
        """Seek to the last key frame at or before ``wanted_s``.

        Seeking uses decoding times, which differ from presentation times. If it goes too far, it is
        repeated from further back.
        """
        ticks = self._stream.time_base
        for back_s in (0.0, 0.5, 5.0, float("inf")):
            target_s = max(0.0, wanted_s - back_s)
            self._container.seek(round((target_s + _SAME_S) / ticks), stream=self._stream)
            self._frames = self._container.decode(self._stream)
            self._now = next((f for f in self._frames if f.pts is not None), None)
            if target_s == 0.0 or (self._now is not None and self._now.time <= wanted_s + _SAME_S):
                break
        first = self._now
        if first is not None:  # the iterator yields it again first
            self._frames = _with_first(first, self._frames)
        self._now = None


def _with_first(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest
