"""Shows a control loop to people: on the live page, and in Rerun."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from proctor.config.sections.display import DisplayFlags
from proctor.control.robot_frames import ControlStep
from proctor.control.terminal.live_page import LiveAddress, LivePage, live_page
from proctor.control.terminal.rerun_display import DisplayedTick, RerunDisplay, rerun_display
from proctor.robots.base import Robot


class LoopDisplay:
    """A ``LoopWatcher`` that feeds the live page and Rerun; it stores references only."""

    def __init__(self, robot: Robot, page: LivePage, rerun: RerunDisplay | None) -> None:
        self._robot, self.page, self._rerun = robot, page, rerun

    def on_tick(self, phase: str, seconds: float, tick: ControlStep) -> None:
        """Show a tick."""
        self.page.on_tick(phase, seconds, tick)
        if self._rerun is not None:
            now = self._robot.clock.now()
            self._rerun.show(DisplayedTick(now, tick.observation, tick.sent))

    def on_episodes(self, n_saved: int) -> None:
        """Show how many episodes are saved."""
        self.page.on_episodes(n_saved)


@contextmanager
def displaying(flags: DisplayFlags, robot: Robot, title: str, fps: float) -> Iterator[LoopDisplay]:
    """Serve the live page and feed Rerun during the block, as the flags ask."""
    with (
        live_page(robot, title, fps, LiveAddress.of(flags)) as page,
        rerun_display(flags, title) as rerun,
    ):
        yield LoopDisplay(robot, page, rerun)
