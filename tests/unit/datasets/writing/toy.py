"""A toy robot: its features, and frames of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from proctor.datasets.format.info import DEFAULT_FEATURES, Info
from proctor.datasets.frames.encoder import CODECS, Codec
from proctor.features import Array

AXES = ["height", "width", "channels"]
FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": [3], "names": None},
    "observation.images.top": {"dtype": "video", "shape": [32, 48, 3], "names": AXES},
    "observation.images.wrist": {"dtype": "image", "shape": [16, 16, 3], "names": AXES},
    "grid": {"dtype": "int64", "shape": [2, 2], "names": None},
    "note": {"dtype": "string", "shape": [1], "names": None},
    "next.done": {"dtype": "bool", "shape": [1], "names": None},
}
INFO = Info(fps=10, features=FEATURES | DEFAULT_FEATURES)
FAST: Codec = CODECS["h264"]


def frame(i: int) -> dict[str, Any]:
    return {
        "observation.state": np.array([i, -i, 0.5], np.float32),
        "observation.images.top": np.full((32, 48, 3), 10 * i, np.uint8),
        "observation.images.wrist": picture(i),
        "grid": np.arange(4).reshape(2, 2) + i,
        "note": f"step {i}",
        "next.done": np.array([i == 4]),
    }


def picture(i: int) -> Array:
    return np.random.default_rng(i).integers(0, 256, (16, 16, 3)).astype(np.uint8)
