"""A PNG encoder without dependencies, for reference pictures and live pages."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from proctor.features import Array

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR = {1: 0, 3: 2}
"""PNG's colour type by number of channels: grey, RGB."""


def encode_png(image: Array, level: int = 1) -> bytes:
    """Encode an image uint8 [H, W, 3] or [H, W, 1]; a depth image uint16 [H, W, 1] keeps 16 bits.

    ``level`` is zlib's, 1 (fast) to 9 (small). The compression releases the interpreter lock.
    """
    height, width, channels = image.shape
    bits = 16 if image.dtype == np.uint16 else 8
    pixels = image.astype(">u2") if bits == 16 else np.ascontiguousarray(image, np.uint8)
    rows = pixels.reshape(height, -1).view(np.uint8)
    filtered = np.zeros((height, 1 + rows.shape[1]), np.uint8)  # filter 0 before every row
    filtered[:, 1:] = rows
    header = struct.pack(">IIBBBBB", width, height, bits, _COLOUR[channels], 0, 0, 0)
    return b"".join(
        (
            _SIGNATURE,
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(filtered.tobytes(), level)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(name: bytes, content: bytes) -> bytes:
    check = zlib.crc32(content, zlib.crc32(name))
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)
