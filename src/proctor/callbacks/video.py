"""Videos of episodes: their settings, and the file that encodes images as they arrive."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from proctor.datasets.frames.encoder import Codec, VideoEncoder, require_av
from proctor.features import Array

_MIN_FPS = 8
_CODEC = Codec("libx264", g=None, crf=23, preset="veryfast")
_MOST_WAITING = 4
"""Images that may wait for the encoder."""


def require_encoder() -> None:
    """Check that videos can be encoded."""
    require_av("the video encoder", "video")


@dataclass(frozen=True)
class VideoOptions:
    """Settings for videos of episodes; picklable. None: a default that suits the task."""

    folder: Path
    """The run folder, absolute."""
    keys: tuple[str, ...]
    """Image keys to show side by side."""
    policy_image_interval: int = 0
    """Steps between the policy's own images, which need no extra rendering; 0: it has none."""
    every: int | None = None
    fps: float | None = None
    height: int | None = None
    width: int | None = None

    def frame_interval(self, task_fps: int) -> int:
        """Return the number of steps between video frames."""
        return self.every or default_frame_interval(task_fps, self.policy_image_interval)

    def frame_rate(self, task_fps: int) -> Fraction:
        """Return the frames per second: as set, or for playback at simulation speed."""
        if self.fps is not None:
            return Fraction(self.fps).limit_denominator(1000)
        return Fraction(task_fps, self.frame_interval(task_fps))

    def steps_per_second(self, task_fps: int) -> float:
        """Return the steps of the episode that one second of the video shows."""
        return float(self.frame_rate(task_fps) * self.frame_interval(task_fps))

    def frame_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the video's height and width for images of this size, even for H.264."""
        if self.height is None and self.width is not None:
            height, width = round(height * self.width / width), self.width
        elif self.height is not None:
            height, width = self.height, self.width or round(width * self.height / height)
        return max(2, height + height % 2), max(2, width + width % 2)


def default_frame_interval(task_fps: int, policy_image_interval: int) -> int:
    """Return the largest interval that leaves 8 frames per second of simulated time.

    A smaller interval (by half at most) is preferred if it matches the policy's images, which are
    rendered anyway.
    """
    widest = max(1, task_fps // _MIN_FPS)
    shared = max(d for d in range(1, widest + 1) if policy_image_interval % d == 0)
    return shared if 2 * shared >= widest or shared == policy_image_interval else widest


def side_by_side(images: list[Array]) -> Array:
    """Return several images as one, with black below the lower ones."""
    if len(images) == 1:
        return images[0]
    height, width = max(len(i) for i in images), sum(i.shape[1] for i in images)
    joined = np.zeros((height, width, 3), np.uint8)
    left = 0
    for image in images:
        joined[: len(image), left : left + image.shape[1]] = image
        left += image.shape[1]
    return joined


class VideoFile:
    """An H.264 video for browsers. Its final name appears only once it is complete.

    A thread encodes while the simulator draws the next image: encoding takes as long as drawing.
    """

    def __init__(self, path: Path, options: VideoOptions, task_fps: int) -> None:
        self._path, self._options = path, options
        self._frame_rate = options.frame_rate(task_fps)
        self._encoder: VideoEncoder | None = None
        self._thread = ThreadPoolExecutor(1)
        self._waiting: deque[Future[None]] = deque()

    def add(self, image: Array) -> None:
        """Encode a copy of one image, uint8 [H, W, 3]; all images have the same size.

        Raises:
            OSError: the disk is full; also for an earlier image.
        """
        while len(self._waiting) >= _MOST_WAITING:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._encode, image.copy()))

    def finish(self) -> None:
        """Complete the file and give it its final name.

        Raises:
            OSError: the file cannot be written.
        """
        while self._waiting:
            self._waiting.popleft().result()
        self._thread.shutdown()
        assert self._encoder is not None, "a video has at least the episode's first image"
        self._encoder.finish()

    def abandon(self) -> None:
        """Remove the incomplete file."""
        self._thread.shutdown(cancel_futures=True)
        if self._encoder is not None:
            self._encoder.abandon()

    def _encode(self, image: Array) -> None:
        if self._encoder is None:
            height, width = self._options.frame_size(*image.shape[:2])
            self._encoder = VideoEncoder(self._path, _CODEC, self._frame_rate, height, width)
        self._encoder.add(image)
