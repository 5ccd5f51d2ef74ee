"""Records the exchanges of a rollout as episodes of a dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from proctor.control.loop.frame_queue import FrameQueue
from proctor.control.loop.pacing import jitter_of
from proctor.control.recording.log import EpisodeEnd, EpisodeReport, RecordingLog
from proctor.control.recording.recorded_episode import LoopWatcher, changed_channels
from proctor.control.robot_frames import ControlStep, FrameBuilder
from proctor.robots.base import Robot

INTERVENTION = "intervention"
"""Feature of DAgger datasets: whether a person acted in the frame."""
INTERVENTION_FEATURE: Mapping[str, Any] = {"dtype": "bool", "shape": [1], "names": None}

Frame = dict[str, Any]


class RolloutRecorder:
    """Adds frames to an open episode and saves it; the queue's thread encodes and writes.

    ``saved`` has the reports of the episodes that are on the disk, by number.
    """

    def __init__(
        self,
        robot: Robot,
        queue: FrameQueue,
        log: RecordingLog,
        task: str,
        fps: float,
        watcher: LoopWatcher | None = None,
    ) -> None:
        self._robot, self._queue, self._log = robot, queue, log
        self._task, self._fps, self._watcher = task, fps, watcher
        self.saved: dict[int, EpisodeReport] = {}
        self.n_handed_over = 0
        """Episodes that were handed over for saving, on the disk or not yet."""
        self._start()

    @property
    def frames(self) -> int:
        """Frames of the open episode."""
        return len(self._times)

    def frame(self, tick: ControlStep, *, intervention: bool = False) -> Frame:
        """Return the frame of an exchange, to be added now or later."""
        frame = self._builder.frame(tick)
        if INTERVENTION in self._queue.features:
            frame[INTERVENTION] = np.array([intervention])
        return frame

    def add(self, tick: ControlStep, *, intervention: bool = False) -> None:
        """Add the frame of an exchange to the open episode."""
        self.add_frame(self.frame(tick, intervention=intervention), tick)

    def add_frame(self, frame: Frame, tick: ControlStep) -> None:
        """Add a frame that ``frame`` has made of ``tick`` to the open episode."""
        self._queue.add(frame, self._task)
        self._times.append(tick.time_s)
        self._changed.update(changed_channels(tick.requested_action, tick.sent))

    def save(self, ended_by: EpisodeEnd, seed: int | None = None) -> bool:
        """Save the open episode; return False if it has no frame."""
        if not self._times:
            return False
        scene = self._robot.scene
        report = EpisodeReport(
            frames=self.frames,
            seconds=round(self.frames / self._fps, 6),
            ended_by=ended_by,
            jitter=jitter_of(np.diff(self._times), 1 / self._fps, self.frames),
            success=None if scene is None else scene.succeeded(),
            seed=None if scene is None else seed,
            repeated={name: n for name, n in self._builder.repeats.items() if n},
            changed=dict(self._changed),
            waited_s=round(self._queue.waited_s - self._waited_before, 3),
        )
        self._queue.save(lambda number: self._on_saved(number, report))
        self.n_handed_over += 1
        if self._watcher is not None:
            self._watcher.on_episodes(self.n_handed_over)
        self._start()
        return True

    def discard(self) -> None:
        """Throw the open episode away."""
        if self._times:
            self._queue.discard()
        self._start()

    def _start(self) -> None:
        self._builder = FrameBuilder(self._robot, self._queue.features)
        self._times: list[float] = []
        self._changed: Counter[str] = Counter()
        self._waited_before = self._queue.waited_s

    def _on_saved(self, number: int, report: EpisodeReport) -> None:
        """Note an episode that is on the disk; runs in the queue's thread."""
        self._log.add(number, report)
        self.saved[number] = report
