"""Depth videos: 12-bit codes, finer at short distances, encoded losslessly.

A depth d (metres) becomes a code of 0 to 4095, linear in ln(d + shift) between the nearest and the
furthest depth. A pixel that was not measured (0 or NaN) becomes the nearest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.frames.decoder import Pixels
from proctor.datasets.frames.encoder import Codec, VideoEncoder
from proctor.errors import DatasetError
from proctor.features import Array

# No B-frames, as in other videos. With them, x265 would give a video of one frame the timestamps of
# frames that do not exist, and 1 in 20 videos could not be written.
DEPTH_CODEC = Codec(
    "hevc", pix_fmt="gray12le", preset=None, extra_options={"x265-params": "lossless=1:bframes=0"}
)
CODES = Pixels("gray12le")
"""Pixel format in which a FrameReader reads depth videos."""
N_CODES = 4096
_HIGHEST = N_CODES - 1


class DepthUnit(Enum):
    """The unit of depth values: integer millimetres or float metres."""

    METRE = "m"
    MILLIMETRE = "mm"

    @classmethod
    def of(cls, key: str, entry: Mapping[str, Any]) -> DepthUnit:
        """Return the unit of depth camera ``key`` in meta/info.json."""
        said = _block(entry).get("depth_unit", cls.MILLIMETRE.value)
        try:
            return cls(said)
        except ValueError:
            raise DatasetError(
                f"{key}: depth_unit must be m or mm, got {said!r:.40}", code="dataset.invalid-depth"
            ) from None

    @property
    def dtype(self) -> str:
        """NumPy dtype of recorded depth values."""
        return "float32" if self is DepthUnit.METRE else "uint16"


@dataclass(frozen=True)
class DepthScale:
    """The mapping from depth codes to metres."""

    nearest: float = 0.01
    furthest: float = 10.0
    shift: float = 3.5
    logarithmic: bool = True

    def __post_init__(self) -> None:
        """Check the range."""
        numbers = (self.nearest, self.furthest, self.shift)
        ordered = all(map(math.isfinite, numbers)) and self.nearest < self.furthest
        if not ordered or (self.logarithmic and self.nearest + self.shift <= 0):
            raise DatasetError(
                f"a depth camera from {self.nearest} to {self.furthest} m, shifted by {self.shift} "
                "m, is invalid: check video.depth_min, .depth_max and .shift in meta/info.json",
                code="dataset.invalid-depth",
            )

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> DepthScale:
        """Return the scale that a feature of meta/info.json states."""
        block = _block(entry)
        names = {"depth_min": "nearest", "depth_max": "furthest", "shift": "shift"}
        try:
            said = {
                field: float(block[f"video.{name}"])
                for name, field in names.items()
                if f"video.{name}" in block
            }
        except (TypeError, ValueError):
            raise DatasetError(
                "video.depth_min, .depth_max and .shift of a depth camera in meta/info.json must "
                "be numbers",
                code="dataset.invalid-depth",
            ) from None
        return cls(**said, logarithmic=bool(block.get("video.use_log", True)))

    def encode(self, depth: Array) -> Array:
        """Return the depth codes, uint16; floats are metres, integers are millimetres."""
        in_metres = np.issubdtype(depth.dtype, np.floating)
        per_metre = np.float32(1 if in_metres else 1000)
        near, far, shift = (
            np.float32(number * per_metre) for number in (self.nearest, self.furthest, self.shift)
        )
        values = np.clip(np.nan_to_num(depth.astype(np.float32), nan=0.0), near, far)
        if self.logarithmic:
            low, high = math.log(float(near + shift)), math.log(float(far + shift))
            place = (np.log(values + shift) - low) / (high - low)
        else:
            place = (values - near) / (far - near)
        codes: Array = np.rint(place * _HIGHEST).clip(0, _HIGHEST).astype(np.uint16)
        return codes

    def decode(self, codes: Array, unit: DepthUnit = DepthUnit.MILLIMETRE) -> Array:
        """Return the depth of codes, float32; millimetres are rounded to integers."""
        low, high = self.nearest, self.furthest
        if self.logarithmic:
            low, high = math.log(low + self.shift), math.log(high + self.shift)
        values = codes.astype(np.float32)
        values *= np.float32((high - low) / _HIGHEST)
        values += np.float32(low)
        if self.logarithmic:
            np.exp(values, out=values)
            values -= np.float32(self.shift)
        np.clip(values, self.nearest, self.furthest, out=values)
        if unit is DepthUnit.MILLIMETRE:
            values *= np.float32(1000)
            np.rint(values, out=values)
        return values

    def info_block(self, height: int, width: int, fps: float, unit: DepthUnit) -> dict[str, Any]:
        """Return the entry of a depth camera for meta/info.json; ``unit`` is that of its frames."""
        return DEPTH_CODEC.info_block(height, width, fps) | {
            "video.channels": 1,
            "is_depth_map": True,
            "video.depth_min": self.nearest,
            "video.depth_max": self.furthest,
            "video.shift": self.shift,
            "video.use_log": self.logarithmic,
            "depth_unit": unit.value,
        }


def _block(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a feature's video entry, whose place depends on the writer's version."""
    blocks = (entry.get("info"), entry.get("video_info"))
    return next((block for block in blocks if isinstance(block, dict) and block), {})


class DepthEncoder(VideoEncoder):
    """Encodes depth codes as a video."""

    def __init__(self, path: Path, fps: float | Fraction, height: int, width: int) -> None:
        super().__init__(path, DEPTH_CODEC, fps, height, width)

    def add(self, picture: Array) -> None:
        """Encode one image of depth codes, uint16 [H, W, 1]; raises as ``VideoEncoder.add``."""
        import av

        codes = np.ascontiguousarray(picture[..., 0])
        self.add_frame(av.VideoFrame.from_ndarray(codes, format="gray12le"))
