"""Frames that both sides write: every kind of feature, by the same recipe. Needs numpy only."""

import numpy as np

FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
    "action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
    "observation.images.top": {
        "dtype": "video", "shape": (64, 96, 3), "names": ["height", "width", "channels"],
    },
    "observation.images.wrist": {
        "dtype": "video", "shape": (64, 64, 3), "names": ["height", "width", "channels"],
    },
    "observation.images.still": {
        "dtype": "image", "shape": (16, 24, 3), "names": ["height", "width", "channels"],
    },
    "matrix": {"dtype": "float32", "shape": (2, 3), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "count": {"dtype": "int64", "shape": (1,), "names": None},
    "double": {"dtype": "float64", "shape": (2,), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
}  # fmt: skip


def frame(episode: int, step: int) -> dict:
    """Return a frame as both writers take it; pictures have slopes, so that codecs keep them."""
    made = np.random.default_rng([episode, step])
    cameras = {}
    for key, entry in FEATURES.items():
        if entry["dtype"] in ("video", "image"):
            height, width, _ = entry["shape"]
            down, right = np.mgrid[:height, :width]
            shade = (down * 2 + right + 3 * step + 60 * episode) % 256
            cameras[key] = np.stack([shade, 255 - shade, shade // 2], -1).astype(np.uint8)
    return {
        "observation.state": made.normal(size=3).astype(np.float32),
        "action": made.normal(size=2).astype(np.float32),
        **cameras,
        "matrix": made.normal(size=(2, 3)).astype(np.float32),
        "next.done": np.array([step == 4]),
        "count": np.array([step * 2**40]),
        "double": made.normal(size=2),
        "note": f"step {step}",
    }


LENGTHS = (6, 2, 9, 4)
TASKS = ("push the block", "lift the cup")
