"""One frame on its way into a dataset: checked against the features, pictures made PNG files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from proctor.datasets.format.info import DEFAULT_FEATURES, Info
from proctor.errors import DatasetError, did_you_mean, one_line
from proctor.features import Array

_PNG_FORMATS = {1: "gray", 3: "rgb24", 4: "rgba"}


def own_features(info: Info) -> list[str]:
    """Return the keys that a frame must have: all but those that count frames."""
    return [key for key in info.features if key not in DEFAULT_FEATURES]


def refuse_unwritable(info: Info) -> None:
    """Refuse a dataset with features that nothing here can write.

    Raises:
        DatasetError: one of them is depth, language, or a picture of two or five channels.
    """
    for key in own_features(info):
        if info.dtype(key) == "language":
            raise DatasetError(f"{key}: language columns cannot be recorded")
        if info.dtype(key) == "video" and (info.is_depth(key) or info.shape(key)[2] != 3):
            raise DatasetError(
                f"{key}: only pictures of three channels can be recorded as video, expected "
                f"height x width x 3, got {'depth' if info.is_depth(key) else info.shape(key)}"
            )
        if info.dtype(key) == "image" and info.shape(key)[2] not in _PNG_FORMATS:
            raise DatasetError(f"{key}: pictures have 1, 3 or 4 channels, got {info.shape(key)}")


def checked_frame(info: Info, frame: Mapping[str, Any]) -> dict[str, Any]:
    """Return the frame, key by key in the features' order: arrays, and texts as they are.

    Raises:
        DatasetError: a key is missing or unknown, or its value is not what the feature says.
    """
    keys = own_features(info)
    for key in frame:
        if key in DEFAULT_FEATURES:
            raise DatasetError(f"{key} is counted by the dataset itself: leave it out of frames")
        if key not in info.features:
            raise DatasetError(
                f"the dataset has no feature {one_line(repr(key), 80)}"
                f"{did_you_mean(str(key), keys)} (it has {', '.join(keys)})"
            )
    missing = [key for key in keys if key not in frame]
    if missing:
        raise DatasetError(
            f"the frame has no {missing[0]}, expected {described(info, missing[0])}"
            + (f" (and no {', '.join(missing[1:])})" if missing[1:] else "")
        )
    return {key: _checked_value(info, key, frame[key]) for key in keys}


def described(info: Info, key: str) -> str:
    """Return what a feature must be, in words."""
    dtype = info.dtype(key)
    if dtype == "string":
        return "a text"
    return f"{'uint8' if dtype in ('image', 'video') else dtype} {list(info.shape(key))}"


def _checked_value(info: Info, key: str, value: Any) -> Any:
    dtype = info.dtype(key)
    if dtype == "string":
        if not isinstance(value, str):
            raise DatasetError(f"{key}: expected a text, got {type(value).__name__}")
        return value
    array = np.asarray(value)
    shape = info.shape(key)
    if array.shape == () and shape == (1,):
        array = array.reshape(1)
    expected = "uint8" if dtype in ("image", "video") else dtype
    if array.dtype != expected or array.shape != shape:
        raise DatasetError(
            f"{key}: expected {described(info, key)}, got {array.dtype} {list(array.shape)}"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise DatasetError(f"{key}: expected finite numbers, got {array[place]} at {list(place)}")
    return array


class PngEncoder:
    """Makes PNG files of pictures, uint8 [H, W, C], with nothing lost."""

    def __init__(self, height: int, width: int, channels: int) -> None:
        import av

        self._format = _PNG_FORMATS[channels]
        self._context: Any = av.CodecContext.create("png", "w")
        self._context.width, self._context.height = width, height
        self._context.pix_fmt = self._format
        # Level 1 takes a quarter of the time of zlib's usual 6, and 8% more room.
        self._context.options = {"compression_level": "1", "pred": "mixed"}
        self._context.time_base = 1
        self._frames = 0

    def encode(self, picture: Array) -> bytes:
        """Return the bytes of a PNG file."""
        import av

        plane = picture[:, :, 0] if self._format == "gray" else picture
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(plane), format=self._format)
        frame.pts = self._frames
        self._frames += 1
        return b"".join(bytes(packet) for packet in self._context.encode(frame))
