"""A rollout on the fake robot: a policy that counts, a dataset in a folder, keys at given times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from proctor.control.loop.frame_queue import FrameQueue
from proctor.control.loop.session import ControlSession
from proctor.control.policy.loop import LoopRate, PolicyLoop
from proctor.control.recording.log import RecordingLog, read_recording_log
from proctor.control.recording.recorded_dataset import new_dataset
from proctor.control.rollout.recorder import INTERVENTION, INTERVENTION_FEATURE, RolloutRecorder
from proctor.control.terminal.keys import KeyHub
from proctor.datasets.frames.encoder import Codec
from proctor.robots.base import Action, RobotObservation
from proctor.types import EpisodeSpec, Task
from tests.fake_robots import FakeRobot, FakeTeleoperator, VirtualClock

FPS = 10
TASK = Task("fake_robot", 0, "lift", "lift the cube", 100, FPS)


def spec(index: int) -> EpisodeSpec:
    return EpisodeSpec(TASK, index, 1000 + index)


@dataclass
class CountingSource:
    """The n-th action since the episode's start is n degrees of the shoulder."""

    episodes: list[int] = field(default_factory=list)
    steps: int = 0

    def start_episode(self, started: EpisodeSpec) -> None:
        self.episodes.append(started.index)
        self.steps = 0

    def act(self, observation: RobotObservation) -> Action:
        self.steps += 1
        return {"shoulder.pos": float(self.steps), "elbow.pos": 0.0, "gripper.pos": 50.0}

    def close(self) -> None:
        """Hold nothing."""


class Rig:
    """The parts of a rollout; ``press`` plans a key for a time of the virtual clock."""

    def __init__(self, root: Path, *, scene: bool = False, multiplier: int = 1) -> None:
        self.root, self.rate = root, LoopRate(FPS, multiplier)
        self.clock = VirtualClock()
        self.robot = FakeRobot(clock=self.clock)
        if not scene:
            self.robot.scene = None  # type: ignore[assignment]
        self.teleop = FakeTeleoperator(clock=self.clock)
        self.source, self.keys = CountingSource(), KeyHub()
        self.said: list[str] = []
        self._plan: list[tuple[float, Callable[[], Any]]] = []
        self.clock.on_time = self._on_time

    def press(self, seconds: float, key: str) -> None:
        self.at(seconds, lambda: self.keys.press(key))

    def at(self, seconds: float, does: Callable[[], Any]) -> None:
        self._plan.append((seconds, does))

    def _on_time(self, now: float) -> None:
        due = [entry for entry in self._plan if entry[0] <= now]
        self._plan = [entry for entry in self._plan if entry[0] > now]
        for _, does in due:
            does()

    @contextmanager
    def running(
        self, *, intervention: bool = False, duration_s: float | None = None
    ) -> Iterator[Any]:
        """Yield the loop and the recorder; the dataset is whole after the block."""
        planned = new_dataset(self.root, self.robot, FPS, video=False, codec=Codec())
        features = dict(planned.features)
        if intervention:
            features[INTERVENTION] = INTERVENTION_FEATURE
        session = ControlSession(self.robot, self.teleop, keys=self.keys)
        writer = replace(planned, features=features).open()
        queue = FrameQueue(writer)
        recorder = RolloutRecorder(
            self.robot, queue, RecordingLog(self.root), TASK.instruction, FPS
        )
        try:
            with session, session.signals.deferred():
                yield PolicyLoop(session, self.source, self.rate, duration_s=duration_s), recorder
        finally:
            queue.flush()
            queue.close()
            writer.close()

    def frames(self) -> list[int]:
        """Return the length of every recorded episode."""
        return [entry.report.frames for _, entry in sorted(read_recording_log(self.root).items())]

    def ends(self) -> list[str]:
        """Return why every recorded episode ended."""
        log = sorted(read_recording_log(self.root).items())
        return [entry.report.ended_by.value for _, entry in log]

    def column(self, key: str) -> list[Any]:
        """Return a column of the dataset as Python values."""
        return column_of(self.root, key)


def column_of(root: Path, key: str) -> list[Any]:
    import pyarrow.parquet as pq

    return pq.read_table(sorted((root / "data").rglob("*.parquet"))[0])[key].to_pylist()
