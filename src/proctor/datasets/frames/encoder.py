"""Video codecs, and the encoder of dataset videos."""

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
"""x265 4.2 for x86 writes beyond its buffers for images up to 48 pixels wide."""


@dataclass(frozen=True)
class Codec:
    """Encoder settings. The defaults are LeRobot's; None leaves a choice to the encoder.

    A key frame at every second frame makes random access cheap, which training needs.
    """

    name: str = "libsvtav1"
    """FFmpeg's name of the encoder, or of the format (``h264``) for its default encoder."""
    pix_fmt: str = "yuv420p"
    g: int | None = 2
    """Distance between key frames, in frames."""
    crf: int | None = 30
    """Constant rate factor: a lower value gives better quality and larger files."""
    preset: int | str | None = 12
    fast_decode: int = 0
    extra_options: dict[str, str] = field(default_factory=dict)
    threads: int = 1
    """Threads of the encoder; they do not change the bytes of AV1."""

    def options(self, width: int) -> dict[str, str]:
        """Return FFmpeg's encoder options for images of ``width`` pixels."""
        chosen = {"g": self.g, "crf": self.crf, "preset": self.preset}
        options = {name: str(value) for name, value in chosen.items() if value is not None}
        if self.name == "libsvtav1":
            fast = f":fast-decode={self.fast_decode}" if self.fast_decode else ""
            options["svtav1-params"] = f"lp={self.threads}{fast}"
        elif self.fast_decode:
            options["tune"] = "fastdecode"
        options |= self.extra_options
        if self.name in ("hevc", "libx265"):
            # An open GOP depends on the one before it, so its packets could not be copied alone.
            own = f"{_QUIET_X265}:open-gop=0"
            if width < _WIDE_ENOUGH_FOR_X265:
                own += ":asm=0"
            options["x265-params"] = ":".join([own, *filter(None, [options.get("x265-params")])])
        return options

    def info_block(self, height: int, width: int, fps: float) -> dict[str, Any]:
        """Return the video entry of a feature for meta/info.json."""
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


# No B-frames: random access would decode a quarter to a half more frames, and with this many key
# frames the files would not be smaller.
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
"""Values of ``--dataset.codec``."""


def codec_named(name: str) -> Codec:
    """Return a codec by name, after checking that this installation has its encoder."""
    if name not in CODECS:
        raise DatasetError(
            f"unknown codec {name!r} (choose from {', '.join(CODECS)}){did_you_mean(name, CODECS)}",
            code="video.unknown-codec",
        )
    _encoder(CODECS[name])
    return CODECS[name]


def require_av(what: str = "PyAV", extra: str = "dataset") -> None:
    """Check that videos can be read and written."""
    if importlib.util.find_spec("av") is None:
        raise MissingExtra(what, extra)


def _encoder(codec: Codec) -> Any:
    """Return FFmpeg's encoder."""
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
    """Close an unfinished file and remove it; errors of a full disk were reported before."""
    import av

    try:
        with contextlib.suppress(av.FFmpegError):
            container.close()
    finally:
        path.unlink(missing_ok=True)


class VideoEncoder:
    """Encodes images as a video, which gets its final name when it is complete.

    Images of another size are resized. The same images give the same bytes.
    """

    def __init__(
        self, path: Path, codec: Codec, fps: float | Fraction, height: int, width: int
    ) -> None:
        """Start a video.

        Raises:
            DatasetError: the encoder is not installed.
            OSError: the file cannot be written.
        """
        _encoder(codec)
        os.environ.setdefault("SVT_LOG", "0")  # otherwise it prints 30 lines per video
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
        """Encode one image, uint8 [H, W, 3].

        Raises:
            DatasetError: the encoder does not support images of this size.
            OSError: the disk is full.
        """
        import av

        self.add_frame(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24"))

    def add_frame(self, frame: Any) -> None:
        """Encode one PyAV frame of any format; raises as ``add``."""
        import av

        try:
            packets = self._stream.encode(frame)
        except av.FFmpegError as error:
            if self.frames or isinstance(error, OSError):
                raise
            size = f"{self._stream.width}x{self._stream.height}"
            raise DatasetError(
                f"{self._codec.name} cannot encode images of {size} as {self._codec.pix_fmt} "
                f"({self._path.name}): sides must be even and not tiny; av1 takes any size",
                code="video.unsupported-image",
            ) from error
        self._container.mux(packets)
        self.frames += 1

    def finish(self) -> None:
        """Complete the file and give it its final name.

        Raises:
            DatasetError: no image was added.
            OSError: the file cannot be written.
        """
        if not self.frames:
            self.abandon()
            raise DatasetError(
                f"{self._path} has no images: a video needs at least one", code="video.empty"
            )
        self._container.mux(self._stream.encode(None))
        self._container.close()
        publish(self._unfinished, self._path)

    def abandon(self) -> None:
        """Remove the unfinished video."""
        discard(self._container, self._unfinished)
