"""Pictures that tell their number, also after a lossy codec, and videos of them."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.frames.encoder import Codec, VideoEncoder
from proctor.features import Array

FPS = 10
MPEG4 = Codec("mpeg4", crf=None, preset=None, extra_options={"b": "8M"})


def predicted_from_later(groups: str) -> Codec:
    """HEVC whose frames lean on later ones; ``groups`` say whether also across key frames."""
    params = f"log-level=none:bframes=2:b-adapt=0:scenecut=0:min-keyint=6:keyint=6:{groups}"
    return Codec("hevc", g=6, preset="medium", extra_options={"x265-params": params})


@contextlib.contextmanager
def processes(method: str, n: int) -> Iterator[Any]:
    """A pool that lets its processes end by themselves.

    Those that were forked have the answer to SIGTERM that a command may have left in this one.
    """
    pool = multiprocessing.get_context(method).Pool(n)
    yield pool
    pool.close()
    pool.join()


def picture(number: int, height: int = 32, width: int = 48) -> Array:
    """A grey ramp as bright as its number (0 to 39) says."""
    ramp = np.linspace(0, 40, width, dtype=np.uint8)
    return np.broadcast_to((ramp + 5 * number)[None, :, None], (height, width, 3)).astype(np.uint8)


def number_of(shown: Array) -> int:
    """The number of a picture that was encoded and decoded."""
    return round((float(shown.mean()) - 19.6) / 5)


def make_video(path: Path, numbers: range, codec: Codec | None = None, fps: float = FPS) -> Path:
    encoder = VideoEncoder(path, codec or Codec(), fps, 32, 48)
    for number in numbers:
        encoder.add(picture(number))
    encoder.finish()
    return path
