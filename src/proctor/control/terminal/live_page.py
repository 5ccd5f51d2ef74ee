"""Feeds the live page of a robot from control loops."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from proctor.config.sections.display import LiveFlags
from proctor.control.loop.frame_queue import short_thread_switches
from proctor.control.robot_features import camera_shapes
from proctor.control.robot_frames import ControlStep
from proctor.report.server.live_robot import LiveChannel, LiveRobot, LiveStep, serving_live_robot
from proctor.robots.base import Action, Robot, RobotObservation


class LivePage:
    """The page that a control loop feeds; without one, every call does nothing."""

    def __init__(self, robot: Robot, live: LiveRobot | None) -> None:
        self._robot = robot
        self._live = live
        self._knows_limits = False

    def show(
        self, observation: RobotObservation, sent: Action | None = None, *, is_tick: bool = True
    ) -> None:
        """Show a step; it stores references and returns at once."""
        if self._live is None:
            return
        if not self._knows_limits:  # a calibrated arm knows its limits once it is connected
            self._live.channels, self._knows_limits = tuple(_channels(self._robot)), True
        step = LiveStep(observation, sent or {})
        self._live.publish(step, self._robot.clock.now(), is_tick=is_tick)

    def on_tick(self, phase: str, seconds: float, tick: ControlStep) -> None:
        """Show a tick of a recording (``LoopWatcher``)."""
        self.show(tick.observation, tick.sent)
        if self._live is not None and self._live.status.phase != phase:
            self.say(phase=phase)

    def on_episodes(self, n_saved: int) -> None:
        """Show how many episodes of the session are saved (``LoopWatcher``)."""
        self.say(done=n_saved)

    def say(
        self,
        *,
        phase: str | None = None,
        headline: str | None = None,
        keys: str | None = None,
        done: int | None = None,
        planned: int | None = None,
    ) -> None:
        """Change the words of the page; None leaves one as it is."""
        if self._live is None:
            return
        said = {
            "phase": phase,
            "headline": headline,
            "keys": keys,
            "done": done,
            "planned": planned,
        }
        changed: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        self._live.status = replace(self._live.status, **changed)

    def set_references(self, pictures: dict[str, bytes]) -> None:
        """Lay these pictures (camera -> PNG) over the cameras; none: no overlay."""
        if self._live is not None:
            self._live.references = pictures


@dataclass(frozen=True)
class LiveAddress:
    """Where the page is served."""

    host: str
    port: int
    """0: any free port."""

    @classmethod
    def of(cls, flags: LiveFlags) -> LiveAddress | None:
        """Return the address that the flags ask for; None: no page."""
        return cls(flags.live_host, flags.live_port) if flags.live else None


@contextmanager
def live_page(
    robot: Robot, title: str, fps: float, address: LiveAddress | None
) -> Iterator[LivePage]:
    """Serve the page of ``robot`` during the block, if there is an address; print its URL."""
    if address is None:
        yield LivePage(robot, None)
        return
    live = LiveRobot(title, _channels(robot), list(camera_shapes(robot)), fps)
    page = serving_live_robot(live, address.host, address.port)
    with page as url, short_thread_switches():
        print(f"live: {url}", file=sys.stderr, flush=True)
        yield LivePage(robot, live)


def _channels(robot: Robot) -> list[LiveChannel]:
    limits = robot.limits
    return [
        LiveChannel(name, unit.value, *limits.get(name, (None, None)))
        for name, unit in robot.action_features.items()
    ]
