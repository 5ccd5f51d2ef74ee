"""DAgger: the policy drives, a person pauses it and corrects it with the teleoperator.

    autonomous  --pause key-->       paused       the robot holds its pose
    paused      --pause key-->       autonomous   the policy begins a new episode
    paused      --correction key-->  correcting   the person drives, and is recorded
    correcting  --correction key-->  paused       the correction is saved

A leader with motors moves to the robot's pose during a pause, so that the person takes over without
a jump. Without motors, the robot moves to the leader's pose when a correction begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from proctor.control.loop.interpolation import between
from proctor.control.policy.loop import PolicyLoop
from proctor.control.recording.log import EpisodeEnd
from proctor.control.rollout.recorder import RolloutRecorder
from proctor.control.rollout.strategies import MakeSpec, ended_by, saving_partial
from proctor.control.terminal.keys import ControlKey
from proctor.robots.base import Teleoperator

LEADER_S = 2.0
"""Seconds in which a leader with motors moves to the robot's pose."""
FOLLOWER_S = 1.0
"""Seconds in which the robot moves to the pose of a leader without motors."""


class DaggerState(Enum):
    """Who drives."""

    AUTONOMOUS = "autonomous"
    PAUSED = "paused"
    CORRECTING = "correcting"


@dataclass(frozen=True)
class DaggerKeys:
    """Keys of the person."""

    pause: str = "space"
    correct: str = "tab"


@dataclass(frozen=True)
class DaggerSettings:
    """What is recorded, and how control is handed over."""

    n_episodes: int
    """Episodes to record: corrections, or whole runs with ``record_autonomous``."""
    record_autonomous: bool = False
    """Record the policy's steps too; the feature ``intervention`` marks the person's."""
    smooth_handover: bool = True
    most_frames: int = 9000
    """With ``record_autonomous``: frames of an episode before the next one begins."""


class DaggerStrategy:
    """Records corrections until there are enough of them or the session is over."""

    def __init__(
        self,
        spec: MakeSpec,
        recorder: RolloutRecorder,
        teleop: Teleoperator,
        settings: DaggerSettings,
        keys: DaggerKeys | None = None,
        announce: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._spec, self._recorder, self._teleop = spec, recorder, teleop
        self._settings, self._keys = settings, keys or DaggerKeys()
        self._announce = announce
        self._n_runs = 0
        self.state = DaggerState.AUTONOMOUS

    def run(self, loop: PolicyLoop) -> None:
        """Drive and record; the running episode is saved at the end."""
        self._resume(loop)
        with saving_partial(self._recorder):
            while self._recorder.n_handed_over < self._settings.n_episodes:
                pressed = loop.wait()
                if loop.is_over:
                    break
                self._handle_keys(loop, pressed)
                if not loop.is_over:
                    self._step(loop)
            self._recorder.save(ended_by(loop))

    def _step(self, loop: PolicyLoop) -> None:
        if self.state is DaggerState.PAUSED:
            loop.hold_step()
            return
        correcting = self.state is DaggerState.CORRECTING
        tick = loop.person_step(self._teleop) if correcting else loop.policy_step()
        if tick is None or not (correcting or self._settings.record_autonomous):
            return
        self._recorder.add(tick, intervention=correcting)
        if self._settings.record_autonomous and self._recorder.frames >= self._settings.most_frames:
            self._save(loop, EpisodeEnd.TIME)

    def _handle_keys(self, loop: PolicyLoop, pressed: list[str]) -> None:
        for key in pressed:
            if key == self._keys.pause and self.state is DaggerState.AUTONOMOUS:
                self._pause(loop)
            elif key == self._keys.pause and self.state is DaggerState.PAUSED:
                self._resume(loop)
            elif key == self._keys.correct and self.state is DaggerState.PAUSED:
                self._begin_correction(loop)
            elif key == self._keys.correct and self.state is DaggerState.CORRECTING:
                self._end_correction(loop)
            elif key in ControlKey.END_EPISODE and self._settings.record_autonomous:
                self._save(loop, EpisodeEnd.KEY)
            elif key in ControlKey.RERECORD:
                self._recorder.discard()
                loop.restart_time()

    def _resume(self, loop: PolicyLoop) -> None:
        """Let the policy drive; it begins a new episode, because the scene has changed."""
        if self._teleop.is_actuated:
            self._teleop.set_torque(on=False)
        loop.start_episode(self._spec(self._n_runs))
        self._n_runs += 1
        self._enter(DaggerState.AUTONOMOUS, f"{self._keys.pause}: pause")

    def _pause(self, loop: PolicyLoop) -> None:
        keys = self._keys
        self._enter(DaggerState.PAUSED, f"{keys.correct}: correct, {keys.pause}: resume")
        self._drive_leader(loop)

    def _begin_correction(self, loop: PolicyLoop) -> None:
        if self._teleop.is_actuated:
            self._teleop.set_torque(on=False)
        elif self._settings.smooth_handover:
            loop.move_to(self._teleop.get_action(), FOLLOWER_S)
        loop.forget_policy_targets()
        if not self._settings.record_autonomous:
            loop.restart_time()
        self._enter(DaggerState.CORRECTING, f"{self._keys.correct}: end the correction")

    def _end_correction(self, loop: PolicyLoop) -> None:
        if not self._settings.record_autonomous:
            self._save(loop, EpisodeEnd.KEY)
        self._pause(loop)

    def _drive_leader(self, loop: PolicyLoop) -> None:
        """Move a leader with motors to the robot's pose, so that both agree."""
        teleop = self._teleop
        if not (self._settings.smooth_handover and teleop.is_actuated and loop.last_sent):
            return
        start = teleop.get_action()
        goal = {name: value for name, value in loop.last_sent.items() if name in start}
        teleop.set_torque(on=True)
        began = loop.now
        while not loop.is_over:
            share = min(1.0, (loop.now - began) / LEADER_S)
            teleop.send_feedback(between(start, goal, share))
            loop.hold_step()
            if share == 1:
                return
            loop.wait()

    def _save(self, loop: PolicyLoop, why: EpisodeEnd) -> None:
        if self._recorder.save(why):
            have, wanted = self._recorder.n_handed_over, self._settings.n_episodes
            self._announce(f"episode {have} of {wanted} saved")
        loop.restart_time()

    def _enter(self, state: DaggerState, keys: str) -> None:
        self.state = state
        self._announce(f"{state.value} ({keys})")
