"""The way from the robot's pose to the first target, before anything is recorded or replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from proctor.control.loop.pacing import Pacer
from proctor.robots.base import Action, Robot

LONGEST_S = 10.0
"""Time after which a loop starts although the robot's limits still hold targets back."""
_REACHED = 1e-2


def approach(
    robot: Robot,
    target: Callable[[], Action],
    fps: float,
    should_end: Callable[[], bool],
    longest_s: float = LONGEST_S,
) -> bool:
    """Send targets until the robot's limits no longer hold them back.

    A robot ramps from its measured pose to the first target. That ramp is not part of an episode.

    Returns:
        Whether the target was reached; False after a stop signal or ``longest_s``.
    """
    pacer = Pacer(robot.clock, fps)
    began = robot.clock.now()
    while True:
        now = pacer.tick()
        if should_end() or now - began >= longest_s:
            return False
        robot.get_observation()  # alerts of motors are noticed while the arm moves
        requested = target()
        if is_reached(requested, robot.send_action(requested), robot.limits):
            return True


def is_reached(requested: Action, sent: Action, limits: Mapping[str, tuple[float, float]]) -> bool:
    """Tell whether the sent targets are the requested ones, as far as the joints' ranges allow."""
    for name, value in sent.items():
        low, high = limits.get(name, (value, value))
        within = min(max(requested[name], low), high) if name in limits else requested[name]
        if abs(value - within) > _REACHED:
            return False
    return True
