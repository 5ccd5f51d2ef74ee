"""One take: the control loop that records an episode, and the loop of the reset phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from proctor.control.loop.frame_queue import FrameQueue
from proctor.control.loop.pacing import Pacer
from proctor.control.recording.log import EpisodeEnd, EpisodeReport
from proctor.control.robot_frames import ControlStep, FrameBuilder
from proctor.control.terminal.keys import ControlKey, KeyReader
from proctor.robots.base import Action, Robot, Teleoperator

SECONDS_AFTER_SUCCESS = 0.5
"""Time that an episode goes on after a simulated scene reports success."""


class EpisodeDecision(Enum):
    """What becomes of a take."""

    KEEP = "keep"
    AGAIN = "again"
    """The operator wants to record it again."""


@dataclass(frozen=True)
class RecordedEpisode:
    """A recorded take; its frames are in the queue."""

    verdict: EpisodeDecision
    report: EpisodeReport

    @property
    def ends_session(self) -> bool:
        """Whether the session ends with this take."""
        return self.report.ended_by.is_partial


class LoopWatcher(Protocol):
    """Shows every tick, as the live page and the status line do; it must not take long."""

    def on_tick(self, phase: str, seconds: float, tick: ControlStep) -> None:
        """Show one tick: "recording" or "reset", and the time since the phase began."""

    def on_episodes(self, n_saved: int) -> None:
        """Show how many episodes of the session are handed over for saving."""


@dataclass(frozen=True)
class ControlLoop:
    """The devices of a loop and what may end it."""

    robot: Robot
    teleop: Teleoperator
    keys: KeyReader
    should_end: Callable[[], bool]
    """Returns whether a stop signal came; raises EmergencyStop."""
    fps: int
    watcher: LoopWatcher | None = None

    def exchange(self, began: float) -> ControlStep:
        """Observe, take the teleoperator's action and send it."""
        observed_at = self.robot.clock.now()
        observation = self.robot.get_observation()
        scene = self.robot.scene
        scene_state = None if scene is None else scene.state()
        requested_action = self.teleop.get_action()
        sent = self.robot.send_action(requested_action)
        return ControlStep(observation, requested_action, sent, observed_at - began, scene_state)

    def watch(self, phase: str, tick: ControlStep) -> None:
        """Tell the watcher of a tick."""
        if self.watcher is not None:
            self.watcher.on_tick(phase, tick.time_s, tick)

    def count(self, n_saved: int) -> None:
        """Tell the watcher how many episodes are saved."""
        if self.watcher is not None:
            self.watcher.on_episodes(n_saved)

    def pressed(self) -> set[ControlKey]:
        """Return the meanings of the keys since the last call."""
        pressed = self.keys.poll()
        return {meaning for meaning in ControlKey for key in pressed if key in meaning}


class RobotEpisodeRecorder:
    """Records takes into a queue; ``partial`` is the unfinished one if a device fails."""

    def __init__(self, loop: ControlLoop, queue: FrameQueue, task: str) -> None:
        self._loop, self._queue, self._task = loop, queue, task
        self._builder = FrameBuilder(loop.robot, queue.features)
        self._pacer = Pacer(loop.robot.clock, loop.fps)
        self._changed: Counter[str] = Counter()
        self._began = self._time_s = 0.0
        self._waited_before = 0.0
        self.frames = 0
        """Frames of the take that is recorded now."""

    def record(self, seconds: float, seed: int | None) -> RecordedEpisode:
        """Record a take of at most ``seconds``; ``seed`` is that of a simulated scene."""
        self._start()
        succeeded_at: float | None = None
        while True:
            now = self._pacer.tick()
            if self.frames == 0:
                self._began = now
            elapsed = now - self._began
            ended = self._ended(elapsed, seconds, succeeded_at)
            if ended is not None:
                verdict, why = ended
                return RecordedEpisode(verdict, self.report(why, seed))
            self._add(self._loop.exchange(self._began))
            scene = self._loop.robot.scene
            if succeeded_at is None and scene is not None and scene.succeeded():
                succeeded_at = elapsed

    def report(self, ended_by: EpisodeEnd, seed: int | None) -> EpisodeReport:
        """Return how the present take was recorded so far."""
        scene = self._loop.robot.scene
        return EpisodeReport(
            frames=self.frames,
            seconds=round(self._time_s + 1 / self._loop.fps, 6) if self.frames else 0.0,
            ended_by=ended_by,
            jitter=self._pacer.jitter(),
            success=None if scene is None else scene.succeeded(),
            seed=None if scene is None else seed,
            repeated={name: n for name, n in self._builder.repeats.items() if n},
            changed=dict(self._changed),
            waited_s=round(self._queue.waited_s - self._waited_before, 3),
        )

    def forget(self) -> None:
        """Forget the take, after it was saved or discarded."""
        self.frames = 0

    def _start(self) -> None:
        loop = self._loop
        self._builder = FrameBuilder(loop.robot, self._queue.features)
        self._pacer = Pacer(loop.robot.clock, loop.fps)
        self._changed = Counter()
        self._waited_before = self._queue.waited_s
        self.frames = 0
        loop.teleop.start_episode()

    def _ended(
        self, elapsed: float, seconds: float, succeeded_at: float | None
    ) -> tuple[EpisodeDecision, EpisodeEnd] | None:
        """Return how the take ends now, or None if it goes on."""
        keys = self._loop.pressed()
        if self._loop.should_end():
            return EpisodeDecision.KEEP, EpisodeEnd.SIGNAL
        if ControlKey.STOP in keys:
            return EpisodeDecision.KEEP, EpisodeEnd.STOP
        if ControlKey.RERECORD in keys:
            return EpisodeDecision.AGAIN, EpisodeEnd.KEY
        if (
            ControlKey.END_EPISODE in keys and self.frames
        ):  # before the first frame there is nothing to end
            return EpisodeDecision.KEEP, EpisodeEnd.KEY
        passed = elapsed + 0.5 / self._loop.fps  # a tick that is a little early counts
        if succeeded_at is not None and passed >= succeeded_at + SECONDS_AFTER_SUCCESS:
            return EpisodeDecision.KEEP, EpisodeEnd.SUCCESS
        if self.frames and passed >= seconds:
            return EpisodeDecision.KEEP, EpisodeEnd.TIME
        return None

    def _add(self, tick: ControlStep) -> None:
        self._queue.add(self._builder.frame(tick), self._task)
        self._changed.update(changed_channels(tick.requested_action, tick.sent))
        self._time_s = tick.time_s
        self.frames += 1
        self._loop.watch("recording", tick)


class ResetEnd(Enum):
    """How a reset phase ended."""

    READY = "ready"
    AGAIN = "again"
    """The operator wants to record the last episode again."""
    STOP = "stop"


def run_reset_phase(loop: ControlLoop, seconds: float) -> ResetEnd:
    """Let the teleoperator drive without recording, until time or a key ends the phase."""
    pacer = Pacer(loop.robot.clock, loop.fps)
    began = loop.robot.clock.now()
    while True:
        now = pacer.tick()
        keys = loop.pressed()
        if loop.should_end() or ControlKey.STOP in keys:
            return ResetEnd.STOP
        if ControlKey.RERECORD in keys:
            return ResetEnd.AGAIN
        if ControlKey.END_EPISODE in keys or now - began + 0.5 / loop.fps >= seconds:
            return ResetEnd.READY
        loop.watch("reset", loop.exchange(began))


def changed_channels(requested: Action, sent: Action) -> list[str]:
    """Return the channels whose sent value differs from the requested one."""
    return [name for name, value in requested.items() if abs(sent.get(name, value) - value) > 1e-4]
