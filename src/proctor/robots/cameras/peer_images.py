"""Images of another computer: the size is read from the header before they are decoded."""

from __future__ import annotations

from typing import Any

import numpy as np

from proctor.errors import ProtocolError
from proctor.features import Array
from proctor.protocols.formats.images import image_size

_PNG = b"\x89PNG"
_MOST_PIXELS = 2**24
"""Of an image whose size is not configured."""


def decode_peer_image(cv2: Any, data: bytes, agreed: tuple[int, int] | None) -> Array:
    """Return a JPEG or PNG of the agreed height and width; its channels stay in order."""
    height, width = image_size(data, "png" if data.startswith(_PNG) else "jpeg")
    if agreed is not None and (height, width) != agreed:
        raise ProtocolError(
            f"an image of {width}x{height}, configured are {agreed[1]}x{agreed[0]}",
            code="protocol.image-size",
        )
    if height * width > _MOST_PIXELS:
        raise ProtocolError(
            f"an image of {width}x{height}; the limit is {_MOST_PIXELS} pixels",
            code="protocol.image-size",
        )
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if image is None or image.shape != (height, width, 3):
        raise ProtocolError("a damaged image", code="protocol.invalid-image")
    decoded: Array = image
    return decoded


def most_image_bytes(height: int, width: int) -> int:
    """Return a limit of the bytes of an encoded image."""
    return 4 * height * width + 2**16
