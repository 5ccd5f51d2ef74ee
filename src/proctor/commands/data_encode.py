"""``proctor data to-video, reencode, stats``: edits that look at every picture, or every number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from proctor.commands.data_arguments import (
    PLACE_FLAGS,
    PLACE_HELP,
    ParsedArgs,
    parse_args,
    parse_names,
)
from proctor.commands.data_edit import run_edit
from proctor.errors import UsageError

if TYPE_CHECKING:
    from proctor.datasets.frames.encoder import Codec

CODEC_FLAGS = ("codec", "crf", "g", "preset", "pix_fmt")
_CODEC_HELP = """\
  --codec=libsvtav1|h264|hevc|...
      the encoder (default: libsvtav1, as LeRobot's)
  --crf=int
      quality: lower is better and larger
  --g=int
      frames from one key frame to the next
  --preset=text
      speed of the encoder
  --pix_fmt=text
      how pixels are stored, such as yuv420p
"""
_TO_VIDEO = f"""\
proctor data to-video DATASET [--codec=h264 ...] (--output=DIR | --in_place)

Makes videos of the pictures that lie in a dataset's tables.

{_CODEC_HELP}{PLACE_HELP}"""
_REENCODE = f"""\
proctor data reencode DATASET [--cameras=KEY,KEY] [--codec=h264 ...] (--output=DIR | --in_place)

Encodes videos again, with another codec or quality. This is the only edit that changes pictures.

  --cameras=KEY,KEY
      which (default: all but those of distances)
{_CODEC_HELP}{PLACE_HELP}"""
_STATS = f"""\
proctor data stats DATASET [--images] (--output=DIR | --in_place)

Works out the statistics again from the frames: of every episode as LeRobot does, of the whole with
quantiles of the data. Statistics that are missing are worked out by every edit.

  --images
      those of cameras too: pictures are decoded, as many as LeRobot samples
{PLACE_HELP}"""


def to_video(words: list[str]) -> int:
    """Run ``proctor data to-video`` and return its exit code."""
    from proctor.datasets.edit import operations

    given = parse_args("to-video", _TO_VIDEO, words, (*CODEC_FLAGS, *PLACE_FLAGS))
    if given is None:
        return 0
    codec = codec_from_flags(given)
    return run_edit(given, lambda source: operations.to_video(source, codec))


def reencode(words: list[str]) -> int:
    """Run ``proctor data reencode`` and return its exit code."""
    from proctor.datasets.edit import operations

    given = parse_args("reencode", _REENCODE, words, ("cameras", *CODEC_FLAGS, *PLACE_FLAGS))
    if given is None:
        return 0
    codec = codec_from_flags(given)
    keys = parse_names(given.flags.get("cameras", ""))
    return run_edit(given, lambda source: operations.reencode(source, keys, codec))


def stats(words: list[str]) -> int:
    """Run ``proctor data stats`` and return its exit code."""
    from proctor.datasets.edit import operations

    given = parse_args("stats", _STATS, words, PLACE_FLAGS, switches=("images",))
    if given is None:
        return 0
    pictures = given.switch("images")
    return run_edit(
        given, lambda source: operations.recompute_statistics(source, pictures=pictures)
    )


def codec_from_flags(given: ParsedArgs) -> Codec:
    """Return the codec that flags name.

    Raises:
        UsageError: it is not known, or a number is none.
    """
    from proctor.datasets.frames.encoder import codec_named

    codec = codec_named(given.flags.get("codec", "libsvtav1"))
    if "crf" in given.flags:
        codec = replace(codec, crf=_whole(given, "crf"))
    if "g" in given.flags:
        codec = replace(codec, g=_whole(given, "g"))
    if "preset" in given.flags:
        preset = given.flags["preset"]
        codec = replace(codec, preset=int(preset) if preset.isdecimal() else preset)
    if "pix_fmt" in given.flags:
        codec = replace(codec, pix_fmt=given.flags["pix_fmt"])
    return codec


def _whole(given: ParsedArgs, name: str) -> int:
    if not given.flags[name].isdecimal() or len(given.flags[name]) > 6:
        raise UsageError(f"--{name} is a whole number, not {given.flags[name]!r}")
    return int(given.flags[name])
