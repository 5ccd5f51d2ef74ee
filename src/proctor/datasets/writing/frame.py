"""Check a recorded frame against the dataset's features, and encode its images as PNG."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from proctor.datasets.format.info import DEFAULT_FEATURES, Info
from proctor.datasets.frames.depth import DEPTH_CODEC, DepthScale, DepthUnit
from proctor.datasets.writing.language import EVENTS, PERSISTENT, check_language_column
from proctor.errors import DatasetError, did_you_mean, strip_control_codes
from proctor.features import Array

_PNG_COLOURS = {1: 0, 3: 2, 4: 6}
"""PNG's colour type by the number of channels: grey, RGB, RGBA."""


def own_features(info: Info) -> list[str]:
    """Return the keys that a frame must have: all features except the default ones."""
    return [key for key in info.features if key not in DEFAULT_FEATURES]


def refuse_unwritable(info: Info) -> None:
    """Refuse a dataset with features that cannot be recorded."""
    for key in own_features(info):
        if info.dtype(key) == "language" and key not in (PERSISTENT, EVENTS):
            raise DatasetError(
                f"{key}: language columns must be named {PERSISTENT} or {EVENTS}",
                code="dataset.unsupported-feature",
            )
        if key in info.cameras and info.is_depth(key):
            _refuse_unwritable_depth(info, key)
        elif info.dtype(key) == "video" and info.shape(key)[2] != 3:
            raise DatasetError(
                f"{key}: only images of three channels can be recorded as video, expected "
                f"height x width x 3, got {info.shape(key)}",
                code="dataset.unsupported-feature",
            )
        elif info.dtype(key) == "image" and info.shape(key)[2] not in _PNG_COLOURS:
            raise DatasetError(
                f"{key}: images must have 1, 3 or 4 channels, got {info.shape(key)}",
                code="dataset.unsupported-feature",
            )


def _refuse_unwritable_depth(info: Info, key: str) -> None:
    """Refuse a depth camera whose format differs from ``DEPTH_CODEC``."""
    entry = info.entry(key)
    if info.dtype(key) != "video" or info.shape(key)[2] != 1:
        raise DatasetError(
            f"{key}: depth is recorded as video, expected height x width x 1, got "
            f"{info.dtype(key)} {info.shape(key)}",
            code="dataset.unsupported-feature",
        )
    DepthScale.of(entry)
    DepthUnit.of(key, entry)
    was = (entry.get("info") or {}).get("video.pix_fmt") or DEPTH_CODEC.pix_fmt
    if was != DEPTH_CODEC.pix_fmt:
        raise DatasetError(
            f"{key}: its depth is stored as {strip_control_codes(repr(was), 40)}; only "
            f"{DEPTH_CODEC.pix_fmt} can be recorded",
            code="dataset.unsupported-feature",
        )


def checked_frame(info: Info, frame: Mapping[str, Any]) -> dict[str, Any]:
    """Return the frame's values in the order of the features: arrays and strings."""
    keys = own_features(info)
    for key in frame:
        if key in DEFAULT_FEATURES:
            raise DatasetError(
                f"{key} is computed by the dataset: leave it out of frames",
                code="dataset.default-feature",
            )
        if key not in info.features:
            raise DatasetError(
                f"the dataset has no feature {strip_control_codes(repr(key), 80)}"
                f"{did_you_mean(str(key), keys)} (it has {', '.join(keys)})",
                code="dataset.unknown-feature",
            )
    missing = [key for key in keys if key not in frame]
    if missing:
        raise DatasetError(
            f"the frame has no {missing[0]}, expected {describe_feature(info, missing[0])}"
            + (f" (and no {', '.join(missing[1:])})" if missing[1:] else ""),
            code="dataset.missing-feature",
        )
    return {key: _checked_value(info, key, frame[key]) for key in keys}


def describe_feature(info: Info, key: str) -> str:
    """Return the expected dtype, shape and unit of a feature as text."""
    dtype = info.dtype(key)
    if dtype == "string":
        return "a text"
    if dtype == "language":
        return "a list of sayings"
    said = f"{_array_dtype(info, key)} {list(info.shape(key))}"
    return f"{said} in {DepthUnit.of(key, info.entry(key)).value}" if info.is_depth(key) else said


def _array_dtype(info: Info, key: str) -> str:
    """Return the NumPy dtype that a frame has under ``key``."""
    if key not in info.cameras:
        return info.dtype(key)
    return DepthUnit.of(key, info.entry(key)).dtype if info.is_depth(key) else "uint8"


def _checked_value(info: Info, key: str, value: Any) -> Any:
    dtype = info.dtype(key)
    if dtype == "string":
        if not isinstance(value, str):
            raise DatasetError(
                f"{key}: expected a string, got {type(value).__name__}", code="dataset.wrong-value"
            )
        return value
    if dtype == "language":
        return check_language_column(key, value, info.cameras)
    array = np.asarray(value)
    shape = info.shape(key)
    if array.shape == () and shape == (1,):
        array = array.reshape(1)
    if array.dtype != _array_dtype(info, key) or array.shape != shape:
        raise DatasetError(
            f"{key}: expected {describe_feature(info, key)}, got {array.dtype} {list(array.shape)}",
            code="dataset.wrong-value",
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise DatasetError(
            f"{key}: expected finite numbers, got {array[place]} at {list(place)}",
            code="dataset.not-finite",
        )
    return array


class PngEncoder:
    """Encodes images, uint8 [H, W, C], as PNG files whose pixels are not compressed.

    Zlib's level 1 takes ten times as long, and its files six times as long to decode. The data
    file, which is compressed with snappy, has 1.4 times the size that it has with level 1.
    """

    def __init__(self, height: int, width: int, channels: int) -> None:
        kind = _PNG_COLOURS[channels]
        header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
        self._start = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header)
        self._rows = np.zeros((height, 1 + width * channels), np.uint8)  # 0 first: not filtered
        self._end = _chunk(b"IEND", b"")

    def encode(self, picture: Array) -> bytes:
        """Return the bytes of a PNG file."""
        self._rows[:, 1:] = picture.reshape(len(self._rows), -1)
        return b"".join(
            (self._start, _chunk(b"IDAT", zlib.compress(self._rows.data, 0)), self._end)
        )


def _chunk(kind: bytes, content: bytes) -> bytes:
    """Return a part of a PNG file: its length, kind, content and checksum."""
    checksum = zlib.crc32(content, zlib.crc32(kind))
    return b"".join((struct.pack(">I", len(content)), kind, content, struct.pack(">I", checksum)))
