"""Feeds the live page of a robot from control loops."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from proctor.control.robot_features import camera_shapes
from proctor.control.robot_frames import Exchange
from proctor.report.live_robot import LiveChannel, LiveRobot, LiveStep, serving_live_robot
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

    def on_tick(self, phase: str, seconds: float, tick: Exchange) -> None:
        """Show a tick of a recording (``LoopWatcher``)."""
        self.show(tick.observation, tick.sent)
        if self._live is not None and self._live.status.phase != phase:
            self.say(phase=phase)

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


@contextmanager
def live_page(robot: Robot, title: str, fps: float, port: int | None) -> Iterator[LivePage]:
    """Serve the page of ``robot`` during the block, if there is a ``port``; print its address.

    Raises:
        UsageError: the port is in use.
    """
    if port is None:
        yield LivePage(robot, None)
        return
    live = LiveRobot(title, _channels(robot), list(camera_shapes(robot)), fps)
    with serving_live_robot(live, port) as address:
        print(f"live: {address}", file=sys.stderr, flush=True)
        yield LivePage(robot, live)


def _channels(robot: Robot) -> list[LiveChannel]:
    limits = robot.limits
    return [
        LiveChannel(name, unit.value, *limits.get(name, (None, None)))
        for name, unit in robot.action_features.items()
    ]
