"""The control loop of one trial: guided start, the policy acts, the judge rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from proctor.control.loop.interpolation import between
from proctor.control.loop.pacing import Jitter, Pacer
from proctor.control.policy.driver import PolicyDriver
from proctor.control.terminal.live_page import LivePage
from proctor.control.terminal.rerun_display import DisplayedTick, RerunDisplay
from proctor.control.trials.verdicts import (
    KEYS_AFTER,
    KEYS_BEFORE,
    KEYS_DURING,
    Briefing,
    Judge,
    Ruling,
    TrialSignal,
    Verdict,
)
from proctor.robots.base import Action, Robot, RobotObservation
from proctor.types import EpisodeSpec

_WAIT_FPS = 20
"""Looks at keys and cameras per second while the person prepares the scene."""
_CHANGED = 1e-4
_SETTLING_S = 3.0
"""Most seconds that a robot is given to reach a pose, after the planned ones."""


class Phase:
    """Names of a trial's phases, as the live page shows them."""

    RESET = "reset the scene"
    RUNNING = "running"
    VERDICT = "verdict"


class Stopped(Exception):
    """A person ended the session by a key; the trial does not count."""


@dataclass(frozen=True)
class TrialRun:
    """A trial that ended, and its verdict."""

    verdict: Verdict
    steps: int
    limited_steps: int
    """Steps in which a limit of the robot changed the policy's action."""
    seconds: float
    """By the computer's clock, as all times of a report; a simulation has a clock of its own."""
    infer_s: tuple[float, ...]
    jitter: Jitter


class TrialLoop:
    """Runs trials on a robot, one at a time."""

    def __init__(
        self,
        robot: Robot,
        judge: Judge,
        check: Callable[[], None],
        live: LivePage,
        rerun: RerunDisplay | None = None,
    ) -> None:
        """Take a connected robot; ``check`` raises if a signal or the emergency key came."""
        self._robot = robot
        self._judge = judge
        self._check = check
        self._live = live
        self._rerun = rerun

    def wait_for_start(self, briefing: Briefing) -> RobotObservation:
        """Brief the judge, wait for the start, and return the observation of that moment.

        Raises:
            Stopped: the judge ends the session.
            RobotError: the robot cannot be read.
        """
        self._judge.brief(briefing)
        seen: list[RobotObservation] = []

        def started(observation: RobotObservation) -> bool:
            seen[:] = [observation]
            start = self._judge.poll_start()
            if start is False:
                raise Stopped("the person ended the session")
            return start is True

        self._watch_until(Phase.RESET, started)
        return seen[0]

    def move_to(
        self,
        pose: Mapping[str, float],
        seconds: float,
        fps: int,
        is_reached: Callable[[RobotObservation], bool] = lambda observation: True,
    ) -> None:
        """Move from the present pose to ``pose`` in a straight line of ``seconds``.

        Limits may hold the robot back: it is sent there a little longer until ``is_reached``.

        Raises:
            KeyboardInterrupt: a signal asks for the end.
            RobotError: the robot cannot go on.
        """
        start = self._robot.get_observation()
        names = [name for name in self._robot.action_features if name in pose and name in start]
        goal = {name: pose[name] for name in names}
        steps = max(1, round(seconds * fps))
        pacer = Pacer(self._robot.clock, fps)
        for step in range(1, steps + round(_SETTLING_S * fps) + 1):
            self._check()
            pacer.tick()
            sent = self._robot.send_action(between(start, goal, min(1.0, step / steps)))
            seen = self._robot.get_observation()
            self._show(seen, sent)
            if step >= steps and is_reached(seen):
                return

    def run(self, driver: PolicyDriver, spec: EpisodeSpec) -> TrialRun:
        """Let the policy act until the judge or the time ends the trial; return the verdict.

        The robot's clock ends it: a slow policy sends fewer actions, and none when time is up.

        Raises:
            Stopped: the person ends the session.
            RobotError: the robot cannot go on.
            PolicyError: the policy failed.
        """
        driver.start_episode(spec)
        self._judge.begin()
        self._live.say(phase=Phase.RUNNING, keys=KEYS_DURING)
        clock, period_s = self._robot.clock, 1 / spec.task.fps
        pacer, began = Pacer(clock, spec.task.fps), time.perf_counter()
        end = clock.now() + spec.task.max_steps * period_s
        steps = limited = 0
        try:
            while pacer.tick() < end - period_s / 2:
                self._check()
                observation = self._robot.get_observation()
                requested_action = driver.act(observation)
                if clock.now() >= end:
                    break
                sent = self._robot.send_action(requested_action)
                steps += 1
                limited += _is_limited(requested_action, sent)
                self._show(observation, sent)
                if self._has_ended():
                    pacer.tick()  # the last action has its whole period too
                    break
        finally:
            driver.end_episode()
        seconds = time.perf_counter() - began
        return TrialRun(
            self._ask_verdict(), steps, limited, seconds, tuple(driver.infer_s), pacer.jitter()
        )

    def _show(self, observation: RobotObservation, sent: Action) -> None:
        self._live.show(observation, sent)
        if self._rerun is not None:
            self._rerun.show(DisplayedTick(self._robot.clock.now(), observation, sent))

    def _has_ended(self) -> bool:
        signal = self._judge.poll_trial()
        if signal is TrialSignal.QUIT:
            raise Stopped("the person ended the session")
        return signal is TrialSignal.END

    def _ask_verdict(self) -> Verdict:
        self._judge.end()
        found: list[Verdict] = []

        def judged(observation: RobotObservation) -> bool:
            verdict = self._judge.poll_verdict()
            if verdict is not None:
                found.append(verdict)
            return verdict is not None

        self._watch_until(Phase.VERDICT, judged)
        if found[0].ruling is Ruling.QUIT:
            raise Stopped("the person ended the session")
        return found[0]

    def _watch_until(self, phase: str, done: Callable[[RobotObservation], bool]) -> None:
        """Read the robot and show it until ``done``; nothing is commanded."""
        self._live.say(phase=phase, keys=KEYS_BEFORE if phase == Phase.RESET else KEYS_AFTER)
        pacer = Pacer(self._robot.clock, _WAIT_FPS)
        while True:
            self._check()
            observation = self._robot.get_observation()
            self._live.show(observation, is_tick=False)
            if done(observation):
                return
            pacer.tick()


def _is_limited(requested: Action, sent: Action) -> bool:
    return any(abs(sent.get(name, value) - value) > _CHANGED for name, value in requested.items())
