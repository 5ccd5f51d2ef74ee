"""Videos of datasets: which codec, and the file that takes pictures as they come."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from proctor.errors import DatasetError, MissingExtra, did_you_mean
from proctor.features import Array
from proctor.system.files import UNFINISHED, publish

_QUIET_X265 = "log-level=error:info=0"
_WIDE_ENOUGH_FOR_X265 = 64
"""x265 4.2 for x86 writes past what it has allocated where pictures are up to 48 wide."""


@dataclass(frozen=True)
class Codec:
    """How pictures become a video. The defaults are LeRobot's; None leaves a choice to the encoder.

    A key frame every other frame makes any frame cheap to get at, which is what training does.
    """

    name: str = "libsvtav1"
    """FFmpeg's name of the encoder, or of the format (``h264``) for its usual one."""
    pix_fmt: str = "yuv420p"
    g: int | None = 2
    """Frames from one key frame to the next."""
    crf: int | None = 30
    """Quality: lower is better and larger."""
    preset: int | str | None = 12
    fast_decode: int = 0
    extra_options: dict[str, str] = field(default_factory=dict)
    threads: int = 1
    """Threads of the encoder; the bytes of AV1 are the same for any number."""

    def options(self, width: int) -> dict[str, str]:
        """Return the encoder's options for pictures that wide, as FFmpeg calls them."""
        chosen = {"g": self.g, "crf": self.crf, "preset": self.preset}
        options = {name: str(value) for name, value in chosen.items() if value is not None}
        if self.name == "libsvtav1":
            fast = f":fast-decode={self.fast_decode}" if self.fast_decode else ""
            options["svtav1-params"] = f"lp={self.threads}{fast}"
        elif self.fast_decode:
            options["tune"] = "fastdecode"
        options |= self.extra_options
        if self.name in ("hevc", "libx265"):
            # An open group of pictures needs the one before it: packets could not be copied.
            own = f"{_QUIET_X265}:open-gop=0"
            if width < _WIDE_ENOUGH_FOR_X265:
                own += ":asm=0"
            options["x265-params"] = ":".join([own, *filter(None, [options.get("x265-params")])])
        return options

    def info_block(self, height: int, width: int, fps: float) -> dict[str, Any]:
        """Return what meta/info.json says of a feature that is encoded like this."""
        return {
            "video.height": height,
            "video.width": width,
            "video.codec": _encoder(self).canonical_name,
            "video.pix_fmt": self.pix_fmt,
            "video.fps": fps,
            "video.channels": 3,
            "has_audio": False,
            "video.g": self.g,
            "video.crf": self.crf,
            "video.preset": self.preset,
            "video.fast_decode": self.fast_decode,
            "video.video_backend": "pyav",
            "video.extra_options": dict(self.extra_options),
            "is_depth_map": False,
        }


# No frame leans on a later one: it would have to be decoded too, a quarter to a half more of the
# work for a frame out of order, and with so many key frames nothing gets smaller by it.
_H264 = Codec("h264", preset="veryfast", extra_options={"bf": "0"})
_HEVC = Codec("hevc", preset="veryfast", extra_options={"x265-params": "bframes=0"})
CODECS = {
    "av1": Codec(),
    "libsvtav1": Codec(),
    "h264": _H264,
    "libx264": replace(_H264, name="libx264"),
    "hevc": _HEVC,
    "libx265": replace(_HEVC, name="libx265"),
}
"""What ``--dataset.codec`` may say."""


def codec_named(name: str) -> Codec:
    """Return a codec by name, checked to be one that this installation can encode with.

    Raises:
        DatasetError: there is none of that name, or it is not part of this installation.
        MissingExtra: PyAV is not installed.
    """
    if name not in CODECS:
        raise DatasetError(
            f"unknown codec {name!r} (choose from {', '.join(CODECS)}){did_you_mean(name, CODECS)}",
            code="video.unknown-codec",
        )
    _encoder(CODECS[name])
    return CODECS[name]


def require_av(what: str = "PyAV", extra: str = "dataset") -> None:
    """Check that videos can be read and written.

    Raises:
        MissingExtra: PyAV is not installed.
    """
    if importlib.util.find_spec("av") is None:
        raise MissingExtra(what, extra)


def _encoder(codec: Codec) -> Any:
    """Return FFmpeg's encoder.

    Raises:
        DatasetError: FFmpeg was built without it.
    """
    require_av()
    import av

    try:
        return av.Codec(codec.name, "w")
    except av.codec.codec.UnknownCodecError:
        raise DatasetError(
            f"this PyAV ({av.__version__}) was built without the encoder {codec.name!r}; install "
            "PyAV's own wheel (pip install --force-reinstall --only-binary av av) or choose "
            "another codec, such as h264",
            code="video.codec-unavailable",
        ) from None


def discard(container: Any, path: Path) -> None:
    """Close a file that is written and remove it; a full disk has been heard of before."""
    import av

    try:
        with contextlib.suppress(av.FFmpegError):
            container.close()
    finally:
        path.unlink(missing_ok=True)


class VideoEncoder:
    """A video that takes pictures as they come. It has its name only once it is complete.

    Pictures of another size than the video's are scaled. The same pictures give the same bytes.
    """

    def __init__(
        self, path: Path, codec: Codec, fps: float | Fraction, height: int, width: int
    ) -> None:
        """Begin a video.

        Raises:
            DatasetError: the codec is not part of this installation.
            OSError: the file cannot be written.
        """
        _encoder(codec)
        os.environ.setdefault("SVT_LOG", "0")  # else it prints 30 lines for every video
        import av

        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._codec = path, codec
        self._unfinished = path.with_name(path.name + UNFINISHED)
        self._container = av.open(
            f"file:{self._unfinished}",
            "w",
            format="mp4",
            options={"movflags": "+faststart", "fflags": "+bitexact"},
        )
        rate = Fraction(fps).limit_denominator(1001)
        self._stream: Any = self._container.add_stream(codec.name, rate, codec.options(width))
        self._stream.height, self._stream.width = height, width
        self._stream.pix_fmt = codec.pix_fmt
        self._stream.codec_context.thread_count = codec.threads
        self.frames = 0

    def add(self, picture: Array) -> None:
        """Encode one picture, uint8 [H, W, 3].

        Raises:
            DatasetError: the encoder cannot take pictures of this size.
            OSError: the disk is full.
        """
        import av

        self.add_frame(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24"))

    def add_frame(self, frame: Any) -> None:
        """Encode one frame of PyAV's, of any format; raises as ``add``."""
        import av

        try:
            packets = self._stream.encode(frame)
        except av.FFmpegError as error:
            if self.frames or isinstance(error, OSError):
                raise
            size = f"{self._stream.width}x{self._stream.height}"
            raise DatasetError(
                f"{self._codec.name} cannot encode pictures of {size} as {self._codec.pix_fmt} "
                f"({self._path.name}): sides must be even for it, and not tiny; av1 takes any",
                code="video.unsupported-image",
            ) from error
        self._container.mux(packets)
        self.frames += 1

    def finish(self) -> None:
        """Complete the file and give it its name.

        Raises:
            DatasetError: no picture came.
            OSError: the disk did not take it.
        """
        if not self.frames:
            self.abandon()
            raise DatasetError(
                f"{self._path} has no pictures: a video needs one at least", code="video.empty"
            )
        self._container.mux(self._stream.encode(None))
        self._container.close()
        publish(self._unfinished, self._path)

    def abandon(self) -> None:
        """Leave nothing behind."""
        discard(self._container, self._unfinished)
