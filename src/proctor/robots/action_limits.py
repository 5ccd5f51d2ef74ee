"""Limits of a robot's targets: joint range, speed, distance per step, and a slow start.

LimitSettings   limits as configured, checked against the robot's channels
StartRamp       moves from the measured pose to the first target at a limited speed
ActionLimiter   applies all limits to each action and counts the targets it changed
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from proctor.errors import RobotError, UsageError
from proctor.robots.base import Action

PerChannel: TypeAlias = float | dict[str, float] | None
"""One number for all channels, numbers by motor or channel, or None for no limit."""
_CHANGED = 1e-4
"""Smallest difference that counts as a clipped target; LeRobot warns at the same value."""
_LONGEST_STEP_S = 0.1
"""The speed limit treats a longer pause between two targets as this long."""


@dataclass(frozen=True)
class LimitSettings:
    """Limits by channel; a channel that is not named has no such limit."""

    step: Mapping[str, float] = field(default_factory=dict)
    """Largest distance between a target and the measured position."""
    speed: Mapping[str, float] = field(default_factory=dict)
    """Largest change of a target, in units per second."""
    start_speed: float | None = None
    """Speed of the way to the first target in units per second; None: at once."""
    start_distance: float | None = None
    """Largest distance of the first target from the measured pose; None: any."""

    def __post_init__(self) -> None:
        if self.start_speed is not None and not 0 < self.start_speed < math.inf:
            raise UsageError(
                f"--robot.start_speed is {self.start_speed:g}; it must be above 0 (null: the robot "
                "goes to the first target at once)",
                code="robot.limit-invalid",
            )


def per_channel(flag: str, value: PerChannel, channels: list[str]) -> dict[str, float]:
    """Return a limit by channel from one number or numbers by motor ("gripper", "gripper.pos")."""
    if value is None:
        return {}
    by_name = dict.fromkeys(channels, value) if isinstance(value, int | float) else value
    known = {channel.rpartition(".")[0]: channel for channel in channels}
    limits: dict[str, float] = {}
    for name, limit in by_name.items():
        channel = known.get(name, name)
        if channel not in channels:
            raise UsageError(
                f"{flag}: unknown motor {name!r} (choose from: {', '.join(known)})",
                code="robot.limit-unknown-motor",
            )
        if not (math.isfinite(limit) and limit >= 0):
            raise UsageError(
                f"{flag}: the limit of {name} is {limit}; it must be 0 or more",
                code="robot.limit-invalid",
            )
        limits[channel] = float(limit)
    return limits


class StartRamp:
    """Leads from the measured pose to the first target: all channels arrive together.

    The duration is the longest distance divided by ``speed``. While it runs, a target that moves
    is followed. A first target nearer than ``NEAR`` is sent at once.
    """

    NEAR = 2.0
    """Units; about the noise of a pose that a person holds."""

    def __init__(self, speed: float | None, max_distance: float | None) -> None:
        self._speed = speed
        self._max_distance = max_distance
        self._pose: Action = {}
        self._began = 0.0
        self._duration = 0.0

    def begin(self, pose: Action, target: Action, now: float) -> None:
        """Start at the measured ``pose``."""
        apart = {name: abs(target[name] - pose[name]) for name in target if name in pose}
        farthest = max(apart, key=lambda name: apart[name], default=None)
        distance = 0.0 if farthest is None else apart[farthest]
        if self._max_distance is not None and distance > self._max_distance:
            raise RobotError(
                f"the first target of {farthest} is {distance:.1f} from its position, more than "
                f"{self._max_distance:g}: move the leader nearer to the robot's pose",
                code="robot.start-too-far",
            )
        self._pose, self._began = dict(pose), now
        self._duration = distance / self._speed if self._speed and distance > self.NEAR else 0.0

    def apply(self, target: Action, now: float) -> Action:
        """Return the point of the way at ``now``; ``target`` itself once the time has passed."""
        elapsed = now - self._began
        if elapsed >= self._duration:
            return target
        share = elapsed / self._duration
        return {
            name: requested + (share - 1) * (requested - self._pose.get(name, requested))
            for name, requested in target.items()
        }


class ActionLimiter:
    """Applies ramp, speed, step and range limits, in this order, and counts what they changed."""

    IDLE_S = 1.0
    """A pause of this length between two targets begins a new ramp."""

    def __init__(self, settings: LimitSettings) -> None:
        self._settings = settings
        self._ramp = StartRamp(settings.start_speed, settings.start_distance)
        self._ramps = settings.start_speed is not None or settings.start_distance is not None
        self._ranges: Mapping[str, tuple[float, float]] = {}
        self._last: Action = {}
        self._last_time: float | None = None
        self.clipped: Counter[str] = Counter()

    def restart(self, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Forget the last target, so that the next one begins a ramp, and set the joint ranges."""
        self._ranges = ranges
        self._last, self._last_time = {}, None

    def apply(self, requested: Action, measure: Callable[[], Action], now: float) -> Action:
        """Return the targets to send; ``measure`` reads the pose and is called only if needed."""
        for name, value in requested.items():
            if not math.isfinite(value):
                raise RobotError(f"the target of {name} is {value}", code="robot.target-invalid")
        pose: Action | None = None
        first = self._last_time is None or now - self._last_time > self.IDLE_S
        if first and (self._ramps or self._settings.speed):
            pose = measure()
            self._ramp.begin(pose, self._in_range(requested), now)
            self._last, self._last_time = dict(pose), now
        sent = self._ramp.apply(requested, now) if self._ramps else dict(requested)
        sent = self._limit_speed(sent, now)
        if self._settings.step:
            sent = _near(sent, pose if pose is not None else measure(), self._settings.step)
        sent = self._in_range(sent)
        for name, value in sent.items():
            if abs(value - requested[name]) > _CHANGED:
                self.clipped[name] += 1
        self._last.update(sent)
        self._last_time = now
        return sent

    def _limit_speed(self, target: Action, now: float) -> Action:
        if not self._settings.speed or self._last_time is None:
            return target
        seconds = min(now - self._last_time, _LONGEST_STEP_S)
        steps = {name: speed * seconds for name, speed in self._settings.speed.items()}
        return _near(target, self._last, steps)

    def _in_range(self, target: Action) -> Action:
        limits = self._ranges
        return {
            name: min(max(value, limits[name][0]), limits[name][1]) if name in limits else value
            for name, value in target.items()
        }


def _near(target: Action, centre: Mapping[str, float], steps: Mapping[str, float]) -> Action:
    """Return ``target`` at most ``steps`` away from ``centre``, by channel."""
    near = dict(target)
    for name, step in steps.items():
        if name in target and name in centre:
            low, high = centre[name] - step, centre[name] + step
            near[name] = min(max(target[name], low), high)
    return near
