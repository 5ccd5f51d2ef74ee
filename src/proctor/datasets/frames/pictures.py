"""Pictures that lie as PNG files in the tables of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from proctor.datasets.frames.decoder import Pixels, converted, scaler
from proctor.datasets.frames.encoder import require_av
from proctor.errors import DatasetError, one_line
from proctor.features import Array
from proctor.machine.system import usable_cores

_CODECS = {b"\x89PNG": "png", b"\xff\xd8\xff": "mjpeg"}
_FORMATS = {1: "gray", 3: "rgb24", 4: "rgba"}
_WORTH_THREADS = 8
"""Pictures: fewer are decoded sooner than handed out."""


def pixels_of(where: str, channels: int, size: tuple[int, int] | None = None) -> Pixels:
    """Return how pictures of so many channels are read; ``where`` names them in an error.

    Raises:
        DatasetError: they are not.
    """
    if channels not in _FORMATS:
        raise DatasetError(f"{where}: pictures of {channels} channels are not read (1, 3 or 4 are)")
    return Pixels(_FORMATS[channels], size)


def decode_pictures(
    where: str,
    files: Sequence[Any],
    shape: tuple[int, int, int],
    size: tuple[int, int] | None = None,
) -> Array:
    """Return pictures of ``shape``, scaled to ``size`` if one is given: uint8 [n, H, W, C].

    ``where`` names them in an error.

    Raises:
        DatasetError: one is no picture, or of another size.
    """
    require_av()
    pixels = pixels_of(where, shape[2], size)
    out = np.empty((len(files), *(size or shape[:2]), shape[2]), np.uint8)

    def decode(i: int) -> None:
        out[i] = _decoded(where, files[i], shape[:2], pixels)

    if len(files) < _WORTH_THREADS:
        for i in range(len(files)):
            decode(i)
    else:
        with ThreadPoolExecutor(min(8, usable_cores())) as threads:
            list(threads.map(decode, range(len(files))))
    return out


def _decoded(where: str, content: Any, size: tuple[int, int], pixels: Pixels) -> Array:
    import av

    if not content:
        raise DatasetError(f"{where}: a picture is not in the table itself, which is not read")
    name = next((name for start, name in _CODECS.items() if content.startswith(start)), None)
    if name is None:
        raise DatasetError(f"{where}: a picture is neither PNG nor JPEG")
    height, width = size
    try:
        context = av.CodecContext.create(name, "r")
        context.options = {"max_pixels": str(4 * height * width + 4096)}  # and not what it claims
        context.thread_count = 1
        packet = av.Packet(content)
        frames = [*context.decode(packet), *context.decode(None)]
    except (av.FFmpegError, ValueError, MemoryError) as error:
        raise DatasetError(f"{where}: a picture is damaged ({one_line(str(error), 120)})") from None
    if len(frames) != 1 or (frames[0].height, frames[0].width) != size:
        found = f"{frames[0].width}x{frames[0].height}" if frames else "nothing"
        raise DatasetError(f"{where}: a picture is {found}, expected {width}x{height}")
    return converted(scaler(), frames[0], pixels)
