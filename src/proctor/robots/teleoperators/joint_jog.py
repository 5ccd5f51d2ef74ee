"""Moves the joints of a robot by keys: a pair of keys for each channel.

The upper key of a column increases a value, the key below it decreases it:

    w e t y u i o c b
    s d g h j k l v m

The columns are the robot's channels in order. ``+`` doubles the step and ``-`` halves it. Keys with
a meaning in every control loop (n, r, q, Esc, Backspace, left and right) are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from proctor.errors import UsageError
from proctor.robots.base import Action, Robot, Unit
from proctor.robots.teleoperators.key_input import Keys

COLUMNS = tuple(zip("wetyuiocb", "sdghjklvm", strict=True))
"""Keys that increase and decrease a channel."""
_LARGER, _SMALLER = ("+", "="), ("-",)
_LEAST_STEP, _MOST_STEP = 0.125, 16.0
_SPEEDS = {Unit.METRES_PER_SECOND: 0.1, Unit.DEGREES_PER_SECOND: 30.0}
"""Velocity while a key is held, by the channel's unit; a channel of a velocity is else 0."""


class JointJog:
    """Targets of a robot's channels, changed by keys."""

    def __init__(self, robot: Robot, step: float) -> None:
        self._robot = robot
        self._step = step
        self._channels = robot.action_features
        self._targets: Action | None = None
        if len(self._channels) > len(COLUMNS):
            raise UsageError(
                f"--teleop.type=keyboard moves at most {len(COLUMNS)} channels, and {robot.name} "
                f"has {len(self._channels)}",
                code="teleop.too-many-channels",
            )

    @property
    def step(self) -> float:
        """Change of a target for each press, in the channel's unit."""
        return self._step

    @property
    def channels(self) -> Mapping[str, Unit]:
        """The robot's channels."""
        return self._channels

    def restart(self) -> None:
        """Begin anew at the pose that the robot has at the next ``move``."""
        self._targets = None

    def move(self, keys: Keys) -> Action:
        """Return the targets after ``keys``."""
        if self._targets is None:
            observed = self._robot.get_observation()
            self._targets = {channel: float(observed[channel]) for channel in self._channels}
        for key in keys.pressed:
            self._change_step(key)
            self._press(key, self._targets)
        limits = self._robot.limits
        for (channel, unit), (more, less) in zip(self._channels.items(), COLUMNS, strict=False):
            if unit in _SPEEDS:
                direction = (more in keys.held) - (less in keys.held)
                self._targets[channel] = direction * _SPEEDS[unit]
            elif channel in limits:
                low, high = limits[channel]
                self._targets[channel] = min(max(self._targets[channel], low), high)
        return dict(self._targets)

    def _change_step(self, key: str) -> None:
        if key in _LARGER:
            self._step = min(2 * self._step, _MOST_STEP)
        elif key in _SMALLER:
            self._step = max(self._step / 2, _LEAST_STEP)

    def _press(self, key: str, targets: Action) -> None:
        for channel, (more, less) in zip(self._channels, COLUMNS, strict=False):
            targets[channel] += self._step * ((key == more) - (key == less))


def key_help(channels: Mapping[str, Unit]) -> str:
    """Return which keys move which channels, as text of one line."""
    pairs = zip(channels, COLUMNS, strict=False)
    return ", ".join(f"{more}/{less} {channel}" for channel, (more, less) in pairs)
