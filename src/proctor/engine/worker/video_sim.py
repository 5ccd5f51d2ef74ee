"""A simulator that also records a video of every episode."""

from __future__ import annotations

from collections.abc import Sequence

from proctor.benchmarks.base import Sim
from proctor.benchmarks.starts import pass_on_start
from proctor.callbacks.video import VideoFile, VideoOptions, side_by_side
from proctor.features import Array, Observation
from proctor.runs.journal import video_path
from proctor.types import EpisodeSpec, StepResult


class VideoSim:
    """Records the initial state, every n-th step and the end; renders nothing twice."""

    def __init__(self, sim: Sim, camera: VideoOptions) -> None:
        self._sim = sim
        pass_on_start(self, sim)
        self._camera = camera
        self._video: VideoFile | None = None
        self._observed_now: Observation = {}  # since the last step
        self._steps = 0

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset the simulator and begin a video."""
        self._abandon()
        self._sim.reset(spec)
        self._spec, self._steps, self._observed_now = spec, 0, {}
        self._every = self._camera.frame_interval(spec.task.fps)
        path = self._camera.folder / video_path(spec.key)
        self._video = VideoFile(path, self._camera, spec.task.fps)
        self._film()

    def step(self, action: Array) -> StepResult:
        """Step, and add a frame where one is due; the last step completes the video."""
        step = self._sim.step(action)
        self._steps += 1
        self._observed_now = {}
        ended = step.terminated or self._steps >= self._spec.task.max_steps
        if ended or self._steps % self._every == 0:
            self._film()
        if ended and self._video is not None:
            self._video.finish()
            self._video = None
        return step

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation, rendering only what the video has not rendered."""
        missing = [key for key in keys if key not in self._observed_now]
        if missing:
            self._observed_now |= self._sim.observe(missing)
        return {key: self._observed_now[key] for key in keys}

    def physics(self) -> Array:
        """Return the simulator's state."""
        return self._sim.physics()

    def close(self) -> None:
        """Close the simulator and discard an incomplete video."""
        try:
            self._abandon()
        finally:
            self._sim.close()

    def _film(self) -> None:
        if self._video is not None:
            images = self.observe(self._camera.keys)
            self._video.add(side_by_side(list(images.values())))

    def _abandon(self) -> None:
        if self._video is not None:
            self._video.abandon()
            self._video = None
