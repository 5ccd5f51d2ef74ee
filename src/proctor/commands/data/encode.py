"""``proctor data to-video, reencode, stats``: edits that read every image or every value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from proctor.commands.data.arguments import EditCommand, parse_names
from proctor.settings import setting

if TYPE_CHECKING:
    from proctor.datasets.frames.encoder import Codec

DEFAULT_CODEC = "libsvtav1"
_MOST = 999_999


@dataclass(kw_only=True)
class EncoderOptions:
    """Options of the video encoder, as every verb that encodes videos takes them."""

    help_group: ClassVar[str] = "Video encoder"

    crf: int | None = setting(
        None,
        "constant rate factor: a lower one gives better quality and larger files (default: "
        "the codec's)",
        least=0,
        most=_MOST,
    )
    g: int | None = setting(
        None, "key frame interval in frames (default: the codec's)", least=0, most=_MOST
    )
    preset: str | None = setting(
        None, "speed preset of the encoder, a name or a number (default: the codec's)"
    )
    pix_fmt: str | None = setting(
        None, "FFmpeg pixel format, such as yuv420p (default: the codec's)"
    )

    def encoder(self, name: str) -> Codec:
        """Return the codec called ``name`` with these options."""
        from proctor.datasets.frames.encoder import codec_named

        codec = codec_named(name)
        if self.crf is not None:
            codec = replace(codec, crf=self.crf)
        if self.g is not None:
            codec = replace(codec, g=self.g)
        if self.preset is not None:
            is_number = self.preset.isdecimal()
            codec = replace(codec, preset=int(self.preset) if is_number else self.preset)
        if self.pix_fmt is not None:
            codec = replace(codec, pix_fmt=self.pix_fmt)
        return codec


@dataclass(kw_only=True)
class EncodeCommand(EncoderOptions, EditCommand):
    """A verb that writes an edited dataset with newly encoded videos."""

    codec: str = setting(
        DEFAULT_CODEC,
        "video encoder (default: LeRobot's)",
        placeholder=f"{DEFAULT_CODEC}|h264|hevc|...",
    )


@dataclass(kw_only=True)
class DataToVideoCommand(EncodeCommand):
    """Encode the images in a dataset's tables as videos."""

    def run(self) -> int:
        """Encode the images and return the exit code."""
        from proctor.datasets.edit import operations

        codec = self.encoder(self.codec)
        return self.edit(lambda source: operations.to_video(source, codec))


@dataclass(kw_only=True)
class DataReencodeCommand(EncodeCommand):
    """Encode videos again, with another codec or quality.

    This is the only edit that changes pixel values.
    """

    cameras: str = setting(
        "", "videos to encode, by feature name (default: all but depth maps)", placeholder="KEY,KEY"
    )

    def run(self) -> int:
        """Encode the videos and return the exit code."""
        from proctor.datasets.edit import operations

        codec, keys = self.encoder(self.codec), parse_names(self.cameras)
        return self.edit(lambda source: operations.reencode(source, keys, codec))


@dataclass(kw_only=True)
class DataStatsCommand(EditCommand):
    """Compute the statistics again from the frames.

    Statistics of every episode are computed as LeRobot does; those of the whole dataset have the
    quantiles of all frames. Every edit computes statistics that are missing.
    """

    images: bool = setting(
        False,
        "also compute the statistics of cameras, from as many images as LeRobot samples; "
        "otherwise keep them (default: keep the statistics of cameras)",
    )

    def run(self) -> int:
        """Compute the statistics and return the exit code."""
        from proctor.datasets.edit import operations

        return self.edit(
            lambda source: operations.recompute_statistics(source, pictures=self.images)
        )
