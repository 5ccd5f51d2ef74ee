"""Videos of episodes: how they are filmed, and the file that takes pictures as they come."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from proctor.datasets.frames.encoder import Codec, VideoEncoder, require_av
from proctor.features import Array

_LEAST_FPS = 8
_FILM = Codec("libx264", g=None, crf=23, preset="veryfast")


def require_encoder() -> None:
    """Check that videos can be written.

    Raises:
        MissingExtra: PyAV is not installed.
    """
    require_av("the video encoder", "video")


@dataclass(frozen=True)
class VideoOptions:
    """How episodes are filmed; picklable. None: chosen to suit the task."""

    folder: Path
    """The run folder, absolute."""
    keys: tuple[str, ...]
    """The images to show side by side."""
    policy_image_interval: int = 0
    """The policy looks at images every so many steps, which makes them free; 0: at none."""
    every: int | None = None
    fps: float | None = None
    height: int | None = None
    width: int | None = None

    def frame_interval(self, task_fps: int) -> int:
        """Return every how many steps a picture is taken."""
        return self.every or default_frame_interval(task_fps, self.policy_image_interval)

    def frame_rate(self, task_fps: int) -> Fraction:
        """Return the pictures per second that show the world at its own speed, or as told."""
        if self.fps is not None:
            return Fraction(self.fps).limit_denominator(1000)
        return Fraction(task_fps, self.frame_interval(task_fps))

    def frame_size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the video, even as H.264 wants them, for pictures so large."""
        if self.height is None and self.width is not None:
            height, width = round(height * self.width / width), self.width
        elif self.height is not None:
            height, width = self.height, self.width or round(width * self.height / height)
        return max(2, height + height % 2), max(2, width + width % 2)


def default_frame_interval(task_fps: int, policy_image_interval: int) -> int:
    """Return the widest spacing that leaves 8 pictures per second of the world's time.

    Rather a narrower one (by half at most) whose pictures are those the policy looks at: they are
    rendered anyway.
    """
    widest = max(1, task_fps // _LEAST_FPS)
    shared = max(d for d in range(1, widest + 1) if policy_image_interval % d == 0)
    return shared if 2 * shared >= widest or shared == policy_image_interval else widest


def side_by_side(pictures: list[Array]) -> Array:
    """Return one picture of several, black below the lower ones."""
    if len(pictures) == 1:
        return pictures[0]
    height, width = max(len(p) for p in pictures), sum(p.shape[1] for p in pictures)
    joined = np.zeros((height, width, 3), np.uint8)
    left = 0
    for picture in pictures:
        joined[: len(picture), left : left + picture.shape[1]] = picture
        left += picture.shape[1]
    return joined


class VideoFile:
    """An H.264 video that browsers play. It has its name only once it is complete."""

    def __init__(self, path: Path, camera: VideoOptions, task_fps: int) -> None:
        self._path, self._camera = path, camera
        self._frame_rate = camera.frame_rate(task_fps)
        self._encoder: VideoEncoder | None = None

    def add(self, picture: Array) -> None:
        """Encode one picture, uint8 [H, W, 3]; all of a video have one size."""
        if self._encoder is None:
            height, width = self._camera.frame_size(*picture.shape[:2])
            self._encoder = VideoEncoder(self._path, _FILM, self._frame_rate, height, width)
        self._encoder.add(picture)

    def finish(self) -> None:
        """Complete the file and give it its name."""
        assert self._encoder is not None, "a film has at least the picture of its start"
        self._encoder.finish()

    def abandon(self) -> None:
        """Leave nothing behind."""
        if self._encoder is not None:
            self._encoder.abandon()
