"""Rollout strategies: what a rollout records.

    base        nothing
    sentry      everything, in episodes of a fixed length
    highlight   the seconds before a key press, and on until the key is pressed again
    episodic    episodes of a fixed length, with a reset of the scene after each
    dagger      a person's corrections (``proctor.control.rollout.dagger``)

Every strategy saves the running episode when a key, a signal or a failing device ends the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from proctor.control.policy.loop import PolicyLoop
from proctor.control.recording.log import EpisodeEnd
from proctor.control.robot_frames import ControlStep
from proctor.control.rollout.recorder import Frame, RolloutRecorder
from proctor.control.terminal.keys import ControlKey
from proctor.errors import ProctorError
from proctor.robots.base import Action, Teleoperator
from proctor.types import EpisodeSpec

RETURN_S = 1.0
"""Seconds of the return to the start pose between two episodes."""
_SENTRY_S = 300.0
_BYTES_PER_PIXEL_AND_FRAME = 0.1 / 8
_DEFAULT_MB = 200

MakeSpec = Callable[[int], EpisodeSpec]
"""Returns the spec of the policy's n-th episode."""


class RolloutStrategy(Protocol):
    """Drives the loop until the session is over."""

    def run(self, loop: PolicyLoop) -> None:
        """Run the session."""


@dataclass(frozen=True)
class BaseStrategy:
    """The policy drives, nothing is recorded; a simulated scene stays as it is."""

    spec: MakeSpec

    def run(self, loop: PolicyLoop) -> None:
        """Drive until the session is over."""
        loop.start_episode(self.spec(0))
        loop.wait()
        while not loop.is_over:
            loop.policy_step()
            loop.wait()


def ended_by(loop: PolicyLoop) -> EpisodeEnd:
    """Return why an episode ends with the session."""
    return EpisodeEnd.SIGNAL if loop.is_signalled else EpisodeEnd.STOP


def sentry_seconds(cameras: Iterable[tuple[int, int, int]], fps: float, mb: int | None) -> float:
    """Return the length of sentry's episodes: the smallest camera fills ``mb`` of video."""
    pixels = [height * width for height, width, _ in cameras]
    if not pixels:
        return _SENTRY_S
    size = (mb or _DEFAULT_MB) * 2**20
    return size / (min(pixels) * _BYTES_PER_PIXEL_AND_FRAME * fps)


@dataclass
class SentryStrategy:
    """Records every step, in episodes of ``seconds``; the policy is not interrupted."""

    spec: MakeSpec
    recorder: RolloutRecorder
    seconds: float

    def run(self, loop: PolicyLoop) -> None:
        """Drive and record until the session is over."""
        loop.start_episode(self.spec(0))
        with saving_partial(self.recorder):
            loop.wait()
            while not loop.is_over:
                tick = loop.policy_step()
                if tick is not None:
                    self.recorder.add(tick)
                    if self.recorder.frames >= self.seconds * loop.rate.fps:
                        self.recorder.save(EpisodeEnd.TIME)
                        loop.restart_time()
                loop.wait()
            self.recorder.save(ended_by(loop))


class HighlightStrategy:
    """Keeps the last seconds in memory; a key saves them and what follows, until pressed again."""

    def __init__(
        self, spec: MakeSpec, recorder: RolloutRecorder, key: str, seconds: float, most_mb: int
    ) -> None:
        self._spec, self._recorder, self._key = spec, recorder, key
        self._seconds, self._most = seconds, most_mb * 2**20
        self._ring: deque[tuple[Frame, ControlStep]] = deque()
        self.buffered_bytes = 0
        """Memory of the frames that wait for the key."""

    def run(self, loop: PolicyLoop) -> None:
        """Drive until the session is over."""
        loop.start_episode(self._spec(0))
        is_live = False
        with saving_partial(self._recorder):
            pressed = loop.wait()
            while not loop.is_over:
                if self._key in pressed:
                    is_live = self._switch(is_live)
                tick = loop.policy_step()
                if tick is not None and is_live:
                    self._recorder.add(tick)
                elif tick is not None:
                    self._remember(tick, loop.rate.fps)
                pressed = loop.wait()
            if is_live:
                self._recorder.save(ended_by(loop))

    def _switch(self, is_live: bool) -> bool:
        """Begin or end a recording; return whether one runs now."""
        if is_live:
            self._recorder.save(EpisodeEnd.KEY)
            return False
        for frame, tick in self._ring:
            self._recorder.add_frame(frame, tick)
        self._ring.clear()
        self.buffered_bytes = 0
        return True

    def _remember(self, tick: ControlStep, fps: float) -> None:
        """Add a frame to the ring; drop the oldest beyond the limits of time and memory."""
        frame = self._recorder.frame(tick)
        self._ring.append((frame, tick))
        self.buffered_bytes += _size(frame)
        while len(self._ring) > self._seconds * fps or self.buffered_bytes > self._most:
            if not self._ring:
                return
            self.buffered_bytes -= _size(self._ring.popleft()[0])


def _size(frame: Frame) -> int:
    return sum(int(value.nbytes) for value in frame.values())


@dataclass(frozen=True)
class EpisodePlan:
    """Lengths and number of episodes."""

    n_episodes: int
    episode_time_s: float
    reset_time_s: float
    first_seed: int = 0
    """Seed of the first episode in a simulated scene; each further one has the next seed."""


@dataclass
class EpisodicStrategy:
    """Records episodes, and resets the scene after each: by a person, or by itself if simulated."""

    spec: MakeSpec
    recorder: RolloutRecorder
    plan: EpisodePlan
    start_pose: Action
    teleop: Teleoperator | None = None
    returns: bool = True
    """Whether the robot returns to the start pose if no person resets the scene."""
    announce: Callable[[str], None] = lambda line: None

    def run(self, loop: PolicyLoop) -> None:
        """Record the planned episodes, or fewer if the session is over before."""
        number = 0
        while self.recorder.n_handed_over < self.plan.n_episodes and not loop.is_over:
            self._start(loop, number)
            again = self._record(loop, number)
            number += 1
            more = self.recorder.n_handed_over < self.plan.n_episodes
            if not loop.is_over and (more or again):
                self._reset(loop)

    def _start(self, loop: PolicyLoop, number: int) -> None:
        scene = loop.robot.scene
        if scene is not None:
            scene.reset(self.plan.first_seed + number)
        have, wanted = self.recorder.n_handed_over, self.plan.n_episodes
        self.announce(f"episode {have + 1} of {wanted}")
        loop.start_episode(self.spec(number))

    def _record(self, loop: PolicyLoop, number: int) -> bool:
        """Record one episode; return whether the operator wants to record it again."""
        seed = self.plan.first_seed + number
        scene = loop.robot.scene
        began: float | None = None
        longest_s = self.plan.episode_time_s - 0.5 / loop.rate.fps
        with saving_partial(self.recorder, seed):
            while True:
                pressed = loop.wait()
                began = loop.now if began is None else began
                if loop.is_over:
                    self.recorder.save(ended_by(loop), seed)
                    return False
                if any(key in ControlKey.RERECORD for key in pressed):
                    self.recorder.discard()
                    return True
                ends = any(key in ControlKey.END_EPISODE for key in pressed)
                if ends and self.recorder.save(EpisodeEnd.KEY, seed):
                    return False
                if loop.now - began >= longest_s and self.recorder.save(EpisodeEnd.TIME, seed):
                    return False  # a slow policy gets no more time
                tick = loop.policy_step()
                if tick is not None:
                    self.recorder.add(tick)
                if scene is not None and scene.succeeded():
                    self.recorder.save(EpisodeEnd.SUCCESS, seed)
                    return False
                if self.recorder.frames >= self.plan.episode_time_s * loop.rate.fps:
                    self.recorder.save(EpisodeEnd.TIME, seed)
                    return False

    def _reset(self, loop: PolicyLoop) -> None:
        if loop.robot.scene is not None:
            return
        if self.teleop is None:
            if self.returns:
                loop.move_to(self.start_pose, RETURN_S)
            wait_for_reset(loop, self.plan.reset_time_s, lambda: loop.hold_step())
            return
        self.announce("reset the scene")
        teleop = self.teleop
        loop.move_to(teleop.get_action(), RETURN_S)
        wait_for_reset(loop, self.plan.reset_time_s, lambda: loop.person_step(teleop))


def wait_for_reset(loop: PolicyLoop, seconds: float, step: Callable[[], Any]) -> None:
    """Run ``step`` in every tick, until time or a key ends the reset."""
    began = loop.now
    while not loop.is_over and loop.now - began < seconds:
        if any(key in ControlKey.END_EPISODE for key in loop.wait()):
            return
        if not loop.is_over:
            step()


@contextmanager
def saving_partial(recorder: RolloutRecorder, seed: int | None = None) -> Iterator[None]:
    """Return a context that saves the open episode if a device fails or a signal interrupts."""
    try:
        yield
    except KeyboardInterrupt:
        recorder.save(EpisodeEnd.SIGNAL, seed)
        raise
    except ProctorError:
        recorder.save(EpisodeEnd.ERROR, seed)
        raise
