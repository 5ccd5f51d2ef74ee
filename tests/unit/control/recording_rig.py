"""A fake robot, its keys and a dataset in one place, to record in tests without waiting."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np

from proctor.control.loop.frame_queue import FrameQueue
from proctor.control.loop.session import EmergencyStop
from proctor.control.loop.stop_signals import StopSignals
from proctor.control.recording.log import RecordingLog
from proctor.control.recording.recorded_dataset import RecordedDataset, new_dataset
from proctor.control.recording.recorded_episode import ControlLoop
from proctor.control.recording.recording import RecordingPlan, RecordingResult, RecordingRun
from proctor.control.terminal.keys import KeyHub
from proctor.datasets.frames.encoder import CODECS
from proctor.datasets.reader import open as open_dataset
from proctor.datasets.reading.dataset import Dataset
from proctor.datasets.writer import DatasetWriter
from tests.fake_robots import FakeRobot, FakeRobotConfig, FakeTeleoperator, VirtualClock

FPS = 10
PLAN = RecordingPlan("stack", n_episodes=2, episode_time_s=0.6, reset_time_s=0.3)


class Rig:
    """Records with LeRobot's figures: 10 frames per second, episodes of 0.6 s, resets of 0.3 s."""

    def __init__(self, root: Path, *, n_cameras: int = 1, scene: bool = False) -> None:
        self.clock = VirtualClock()
        self.robot = FakeRobot(FakeRobotConfig(n_cameras=n_cameras, simulated=scene), self.clock)
        self.teleop = FakeTeleoperator(clock=self.clock)
        self.keys = KeyHub()
        self.signals = StopSignals()
        self.is_emergency = False
        self.root = root
        self.dataset: RecordedDataset = new_dataset(
            root, self.robot, FPS, video=True, codec=CODECS["h264"]
        )
        self.lines: list[str] = []
        self.capacity: int | None = None
        self.wrap: Callable[[DatasetWriter], DatasetWriter] = lambda writer: writer

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Call ``action`` once when the clock reaches ``time``."""
        before, done = self.clock.on_time, False

        def on_time(now: float) -> None:
            nonlocal done
            before(now)
            if not done and now >= time - 1e-9:
                done = True
                action()

        self.clock.on_time = on_time

    def press_at(self, time: float, key: str) -> None:
        self.at(time, lambda: self.keys.press(key))

    def signal_at(self, time: float, signum: signal.Signals) -> None:
        def receive() -> None:
            self.signals.received = signum

        self.at(time, receive)

    def _should_end(self) -> bool:
        if self.is_emergency:
            raise EmergencyStop("emergency stop")
        return self.signals.received is not None

    def record(self, plan: RecordingPlan = PLAN) -> RecordingResult:
        """Connect, record, disconnect, flush and close, as the command does."""
        self.robot.connect()
        self.teleop.connect()
        writer = self.wrap(self.dataset.open())
        queue = FrameQueue(writer, self.capacity)
        loop = ControlLoop(self.robot, self.teleop, self.keys.reader(), self._should_end, FPS)
        run = RecordingRun(loop, queue, RecordingLog(self.root), plan, self.lines.append)
        try:
            try:
                run.run()
            finally:
                self.robot.disconnect()
                queue.flush()
        finally:
            queue.close()
            writer.release()
        return run.result

    def read(self) -> Dataset:
        return open_dataset(self.root)

    def lengths(self) -> list[int]:
        """Frames of every episode in the dataset."""
        return [int(end - start) for start, end in self.read().spans]


def image_levels(rig: Rig, key: str = "observation.images.camera0") -> list[int]:
    """Return the mean level of every image of a camera; fake images count upwards from 1."""
    dataset = rig.read()
    frames = dataset.batch(np.arange(len(dataset)), [key])[key]
    return [round(float(np.asarray(frame).mean())) for frame in frames]
