"""The control loop of a rollout: a policy or a person drives the robot, tick by tick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from proctor.control.loop.interpolation import ActionInterpolator, between
from proctor.control.loop.pacing import Jitter, Pacer
from proctor.control.loop.session import ControlSession
from proctor.control.recording.recorded_episode import LoopWatcher
from proctor.control.robot_frames import ControlStep
from proctor.control.terminal.keys import ControlKey
from proctor.robots.base import Action, Robot, RobotObservation, Teleoperator
from proctor.types import EpisodeSpec


class ActionSource(Protocol):
    """A policy that drives a robot: ``PolicyDriver`` or ``RealTimeDriver``."""

    def start_episode(self, spec: EpisodeSpec) -> None:
        """Begin an episode: forget chunks, histories and states."""

    def act(self, observation: RobotObservation) -> Action:
        """Return the action of this control step."""

    def close(self) -> None:
        """Release the policy."""


@dataclass(frozen=True)
class LoopRate:
    """Frequency of a loop."""

    fps: float
    """Actions of the policy per second; also the frames per second of a recording."""
    multiplier: int = 1
    """Targets per action: the loop runs ``fps * multiplier`` times per second."""


class PolicyLoop:
    """Drives a connected robot; strategies decide what each tick does and what is recorded.

    ``is_over`` tells that the session ends: after a stop key, a signal or the planned time. The
    emergency key raises ``EmergencyStop`` from ``wait``.
    """

    def __init__(
        self,
        session: ControlSession,
        source: ActionSource,
        rate: LoopRate,
        *,
        duration_s: float | None = None,
        watcher: LoopWatcher | None = None,
    ) -> None:
        self.robot: Robot = session.robot
        self.rate = rate
        self._session, self._source, self._keys = session, source, session.keys.reader()
        self._watcher = watcher
        self._duration_s = duration_s
        self._interpolator = ActionInterpolator(rate.multiplier)
        self._pacer = Pacer(self.robot.clock, rate.fps * rate.multiplier)
        self._session_began: float | None = None
        self._began = 0.0
        self._open: ControlStep | None = None
        self._is_stopped = False
        self.last_sent: Action = {}
        """The newest targets of all channels."""

    @property
    def is_over(self) -> bool:
        """Whether the session ends."""
        return self._is_stopped

    @property
    def is_signalled(self) -> bool:
        """Whether a signal ends the session."""
        return self._session.signals.received is not None

    @property
    def now(self) -> float:
        """The time on the robot's clock."""
        return self.robot.clock.now()

    def jitter(self) -> Jitter:
        """Return how regular the ticks of the session were."""
        return self._pacer.jitter()

    def start_episode(self, spec: EpisodeSpec) -> None:
        """Let the policy begin an episode; times of exchanges count from the next tick."""
        self._source.start_episode(spec)
        self._interpolator.reset()
        self._open = None
        self.restart_time()

    def restart_time(self) -> None:
        """Count the times of exchanges from now on, for a new recorded episode."""
        self._began = self.now

    def wait(self) -> list[str]:
        """Wait for the next tick; return the keys that were pressed since the last one.

        Raises:
            EmergencyStop: the emergency key was pressed.
        """
        now = self._pacer.tick()
        if self._session_began is None:
            self._session_began = now
        pressed = self._keys.poll()
        half = 0.5 / (self.rate.fps * self.rate.multiplier)
        elapsed = now - self._session_began + half
        out_of_time = self._duration_s is not None and elapsed >= self._duration_s
        asked = any(key in ControlKey.STOP for key in pressed)
        self._is_stopped |= self._session.should_end() or out_of_time or asked
        return pressed

    def policy_step(self) -> ControlStep | None:
        """Send the next target of the policy; return the exchange when its action is complete.

        With interpolation an action takes several ticks: the exchange has the observation of the
        first one and the targets that the last one sent.
        """
        if self._interpolator.needs_action:
            self._open = self._observed({}, {})
            requested_action = self._source.act(self._open.observation)
            self._interpolator.add(requested_action)
            self._open = _with_actions(self._open, requested_action, {})
        sent = self._send(self._interpolator.next_target())
        if not self._interpolator.needs_action or self._open is None:
            return None
        done, self._open = _with_actions(self._open, self._open.requested_action, sent), None
        self._tell("policy", done)
        return done

    def person_step(self, teleop: Teleoperator) -> ControlStep | None:
        """Send the action of a person; return the exchange, at the policy's rate."""
        skipped = self._pacer.ticks % self.rate.multiplier
        if skipped:
            self._send(teleop.get_action())
            return None
        seen = self._observed({}, {})
        requested_action = teleop.get_action()
        done = _with_actions(seen, requested_action, self._send(requested_action))
        self._tell("person", done)
        return done

    def hold_step(self) -> None:
        """Send the last targets again."""
        if self.last_sent:
            self._send(self.last_sent)

    def pose(self) -> Action:
        """Return the measured values of the channels that can be commanded to a position."""
        seen = self.robot.get_observation()
        return {
            name: float(seen[name])
            for name in self.robot.action_features
            if name in seen and name.endswith(".pos")
        }

    def move_to(self, pose: Action, seconds: float) -> None:
        """Move in a straight line from the measured pose to ``pose``; a stop ends it early."""
        start, began = self.pose(), self.now
        goal = {name: value for name, value in pose.items() if name in start}
        pacer = Pacer(self.robot.clock, self.rate.fps * self.rate.multiplier)
        while not self._session.should_end():
            now = pacer.tick()
            share = min(1.0, (now - began) / seconds)
            self._send(between(start, goal, share))
            if share == 1:
                break
        self.forget_policy_targets()

    def forget_policy_targets(self) -> None:
        """Do not interpolate from the policy's last action: something else has moved the robot."""
        self._interpolator.reset()
        self._open = None

    def _observed(self, requested_action: Action, sent: Action) -> ControlStep:
        at = self.now
        seen = self.robot.get_observation()
        scene = self.robot.scene
        return ControlStep(
            seen, requested_action, sent, at - self._began, None if scene is None else scene.state()
        )

    def _send(self, target: Action) -> Action:
        sent = self.robot.send_action(target)
        self.last_sent = {**self.last_sent, **sent}
        return sent

    def _tell(self, phase: str, tick: ControlStep) -> None:
        if self._watcher is not None:
            self._watcher.on_tick(phase, tick.time_s, tick)


def _with_actions(tick: ControlStep, requested_action: Action, sent: Action) -> ControlStep:
    return ControlStep(tick.observation, requested_action, sent, tick.time_s, tick.scene_state)
