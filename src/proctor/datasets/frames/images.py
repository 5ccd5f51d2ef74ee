"""Decode the PNG and JPEG images that are stored in data files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from proctor.datasets.frames.decoder import Pixels, converted, scaler
from proctor.datasets.frames.encoder import require_av
from proctor.errors import DatasetError, strip_control_codes
from proctor.features import Array
from proctor.system.platform.platform_info import usable_cores

_CODECS = {b"\x89PNG": "png", b"\xff\xd8\xff": "mjpeg"}
_FORMATS = {1: "gray", 3: "rgb24", 4: "rgba"}
_WORTH_THREADS = 8
"""Least number of images that are worth several threads."""
_FED_BY_ONE = 4
"""FFmpeg threads that one Python thread keeps busy while it also resizes."""


def pixel_format_for(where: str, channels: int, size: tuple[int, int] | None = None) -> Pixels:
    """Return the pixel format of images with ``channels``; ``where`` names them in an error."""
    if channels not in _FORMATS:
        raise DatasetError(
            f"{where}: images of {channels} channels are not supported (1, 3 or 4 are)",
            code="dataset.unsupported-image",
        )
    return Pixels(_FORMATS[channels], size)


def decode_images(
    where: str,
    files: Sequence[Any],
    shape: tuple[int, int, int],
    size: tuple[int, int] | None = None,
    threads: int | None = None,
) -> Array:
    """Decode images of ``shape``, resized to ``size`` if given: uint8 [n, H, W, C].

    ``where`` names them in an error; ``threads`` is the number of decoder threads.
    """
    require_av()
    pixels = pixel_format_for(where, shape[2], size)
    out = np.empty((len(files), *(size or shape[:2]), shape[2]), np.uint8)
    codecs = [_codec(where, content) for content in files]
    threads = 1 if len(files) < _WORTH_THREADS else threads or min(8, usable_cores())
    ours, ends = threads, list(range(len(files) + 1))
    if all(map(_leans_on_nothing, files)):  # FFmpeg's threads decode; ours feed, resize and copy
        ours = -(-threads // _FED_BY_ONE)
        ends = [len(files) * i // ours for i in range(ours + 1)]

    def decode(part: range) -> None:
        reformatter, contents = scaler(), [files[i] for i in part]
        frames = _frames(where, codecs[part.start], contents, shape[:2], -(-threads // ours))
        for i, frame in zip(part, frames, strict=True):
            out[i] = converted(reformatter, frame, pixels)

    parts = [range(start, end) for start, end in itertools.pairwise(ends) if start < end]
    if ours == 1:
        for part in parts:
            decode(part)
    else:
        with ThreadPoolExecutor(ours) as executor:
            list(executor.map(decode, parts))
    return out


def _codec(where: str, content: Any) -> str:
    if not content:
        raise DatasetError(
            f"{where}: an image is stored outside the data file, which is not supported",
            code="dataset.unsupported-image",
        )
    name = next((name for start, name in _CODECS.items() if content.startswith(start)), None)
    if name is None:
        raise DatasetError(
            f"{where}: an image is neither PNG nor JPEG", code="dataset.unsupported-image"
        )
    if name == "png" and content[24:26] in (b"\x10\0", b"\x10\4"):  # only 8 bits would be read
        raise DatasetError(
            f"{where}: an image has 16 bits: depth images in data files are not supported",
            code="dataset.unsupported-image",
        )
    return name


def _leans_on_nothing(content: Any) -> bool:
    """Tell whether a reused decoder gives the same result for this image as a new one.

    A damaged JPEG or palette PNG could use the tables of an earlier image.
    """
    return bool(content[25:26] in (b"\0", b"\2", b"\4", b"\6") and content[:1] == b"\x89")


def _frames(
    where: str, codec: str, contents: Sequence[Any], size: tuple[int, int], threads: int
) -> Iterator[Any]:
    """Yield the PyAV frames of image files in order, decoded as the packets of one video.

    FFmpeg decodes on its own ``threads`` without the interpreter lock. Python threads that each
    decode an image would wait for each other when opening, closing and copying.
    """
    import av

    height, width = size
    try:
        context = av.CodecContext.create(codec, "r")
        context.options = {
            "max_pixels": str(4 * height * width + 4096)
        }  # not the size that the file claims
        context.thread_count, context.thread_type = threads, "FRAME"
        found = 0
        for packet in (*map(_packet, itertools.count(), contents), None):
            for frame in context.decode(packet):
                if (frame.pts, frame.height, frame.width) != (found, height, width):
                    raise _other(where, f"{frame.width}x{frame.height}", size)
                found += 1
                yield frame
    except (av.FFmpegError, ValueError, MemoryError) as error:
        raise DatasetError(
            f"{where}: an image is damaged ({strip_control_codes(str(error), 120)})",
            code="dataset.damaged-image",
        ) from None
    if found < len(contents):
        raise _other(where, "nothing", size)


def _packet(number: int, content: Any) -> Any:
    import av

    packet = av.Packet(content)
    packet.pts, packet.is_keyframe = (
        number,
        True,
    )  # otherwise it counts as a change of the last image
    return packet


def _other(where: str, found: str, size: tuple[int, int]) -> DatasetError:
    return DatasetError(
        f"{where}: an image is {found}, expected {size[1]}x{size[0]}",
        code="dataset.wrong-image-size",
    )
