"""PNG and JPEG images from untrusted peers: the size is read from the header before decoding.

Only the parts that hold pixels reach the decoder. Other parts (text, profiles, thumbnails,
animation) could be decompression bombs.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

import numpy as np

from proctor.errors import ProtocolError
from proctor.features import Array
from proctor.system.platform.optional import LOAD_ERRORS, import_failure

FORMATS = {"png": "PNG", "jpeg": "JPEG"}
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_KEPT = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
_JPEG = b"\xff\xd8"
_SOS = 0xDA
_SOF = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_ALONE = {0x01, *range(0xD0, 0xD8)}
"""Markers without a length field."""
_DROPPED = {*range(0xE1, 0xEE), 0xEF, 0xFE}
"""Application segments and comments. JFIF's and Adobe's are kept: they define the colours."""
_MAX_PARTS, _MAX_FILL = 4096, 64
_MAX_SCANS = 64
"""Limit for progressive JPEGs, since each scan covers the whole image."""


def image_size(data: bytes, form: str) -> tuple[int, int]:
    """Return height and width from the header, without decoding."""
    if form == "png":
        if not data.startswith(_PNG) or data[12:16] != b"IHDR" or len(data) < 24:
            raise ProtocolError("an image is not a PNG", code="protocol.invalid-image")
        width, height = struct.unpack_from(">II", data, 16)
    else:
        height, width = _jpeg_size(data)
    if not height or not width:
        raise ProtocolError(
            f"an image has the size {height}x{width}", code="protocol.invalid-image"
        )
    return height, width


def decode_image(data: bytes, form: str) -> Array:
    """Decode an image as uint8 [H, W, 3]; the caller must have checked its size."""
    try:
        from PIL import Image
    except LOAD_ERRORS as error:
        raise import_failure(error, "PIL", "wire", "Pillow") from None
    plain = _png_pixels(data) if form == "png" else _jpeg_pixels(data)
    try:
        with Image.open(io.BytesIO(plain), formats=[FORMATS[form]]) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ProtocolError(
            f"an image cannot be decoded ({error})", code="protocol.invalid-image"
        ) from None


def _png_pixels(data: bytes) -> bytes:
    """Return a PNG without its ancillary chunks."""
    kept, place = [_PNG], len(_PNG)
    for _ in range(_MAX_PARTS):
        if place + 8 > len(data):
            break
        size, name = struct.unpack_from(">I4s", data, place)
        ends = place + size + 12
        if name in _PNG_KEPT:
            kept.append(data[place:ends])
        if name == b"IEND":
            break
        place = ends
    else:
        raise ProtocolError(f"a PNG has more than {_MAX_PARTS} chunks", code="protocol.too-large")
    return b"".join(kept)


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, start and end of each segment; the first scan extends to the end."""
    if not data.startswith(_JPEG):
        raise ProtocolError("an image is not a JPEG", code="protocol.invalid-image")
    place = len(_JPEG)
    for _ in range(_MAX_PARTS):
        place += len(_fill(data[place + 1 : place + 1 + _MAX_FILL]))
        if data[place : place + 1] != b"\xff" or place + 4 > len(data):
            raise ProtocolError("a JPEG is truncated", code="protocol.invalid-image")
        marker = data[place + 1]
        if marker == _SOS:
            yield marker, place, len(data)
            return
        size = 0 if marker in _ALONE else struct.unpack_from(">H", data, place + 2)[0]
        ends = place + 2 + size
        yield marker, place, ends
        place = ends
    raise ProtocolError(f"a JPEG has more than {_MAX_PARTS} segments", code="protocol.too-large")


def _fill(data: bytes) -> bytes:
    """Return the fill bytes before a marker's code."""
    return data[: len(data) - len(data.lstrip(b"\xff"))]


def _jpeg_size(data: bytes) -> tuple[int, int]:
    found: list[tuple[int, int]] = []
    for marker, begins, ends in _jpeg_segments(data):
        if marker in _SOF:
            if ends - begins < 9 or ends > len(data):
                raise ProtocolError("a JPEG is truncated", code="protocol.invalid-image")
            found.append(struct.unpack_from(">HH", data, begins + 5))
    if len(found) != 1:
        raise ProtocolError(
            f"a JPEG has {len(found)} frame headers instead of one", code="protocol.invalid-image"
        )
    if data.count(bytes([0xFF, _SOS])) > _MAX_SCANS:
        raise ProtocolError(f"a JPEG has more than {_MAX_SCANS} scans", code="protocol.too-large")
    return found[0]


def _jpeg_pixels(data: bytes) -> bytes:
    """Return a JPEG without comments and application segments."""
    kept = [data[a:b] for marker, a, b in _jpeg_segments(data) if marker not in _DROPPED]
    return b"".join([_JPEG, *kept])
