"""Joints that emulated servos drive: the interface, and a model without physics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

_STEP_S = 0.005


class Joints(Protocol):
    """Joints of an arm; angles in radians by joint name."""

    def angles(self) -> Mapping[str, float]:
        """Return the angles."""

    def velocities(self) -> Mapping[str, float]:
        """Return the velocities in rad/s."""

    def loads(self) -> Mapping[str, float]:
        """Return the servos' torques as parts of the greatest one, -1 to 1."""

    def set_target(self, joint: str, angle: float) -> None:
        """Set the angle that a servo drives to."""

    def set_speed(self, joint: str, speed: float) -> None:
        """Let a servo in velocity mode turn at ``speed`` rad/s."""

    def set_gain(self, joint: str, gain: float) -> None:
        """Set a servo's position gain as a multiple of the usual one."""

    def set_torque(self, joint: str, *, on: bool) -> None:
        """Switch a servo; one that is switched on holds the present angle."""

    def set_angle(self, joint: str, angle: float) -> None:
        """Put a joint at an angle, as a hand that moves a limp arm."""

    def step(self, seconds: float) -> None:
        """Let time pass."""


class KinematicJoints:
    """Joints that approach their targets exponentially, with a greatest speed.

    A limp joint stays where it is, as a leader's joint with friction does.
    """

    def __init__(
        self,
        ranges: Mapping[str, tuple[float, float]],
        start: Mapping[str, float] | None = None,
        *,
        rate_per_s: float = 12.0,
        max_speed: float = 5.0,
    ) -> None:
        self._ranges = dict(ranges)
        self._angles = dict.fromkeys(ranges, 0.0) | dict(start or {})
        self._velocities = dict.fromkeys(ranges, 0.0)
        self._targets = dict(self._angles)
        self._speeds: dict[str, float] = {}
        self._gains = dict.fromkeys(ranges, 1.0)
        self._driven: set[str] = set()
        self._rate_per_s, self._max_speed = rate_per_s, max_speed

    def angles(self) -> Mapping[str, float]:
        """Return the angles."""
        return self._angles

    def velocities(self) -> Mapping[str, float]:
        """Return the velocities in rad/s."""
        return self._velocities

    def loads(self) -> Mapping[str, float]:
        """Return a load that grows with the distance to the target."""
        return {
            name: min(max(self._targets[name] - angle, -1.0), 1.0) if name in self._driven else 0.0
            for name, angle in self._angles.items()
        }

    def set_target(self, joint: str, angle: float) -> None:
        """Set the angle that a servo drives to, limited to the joint's range."""
        self._speeds.pop(joint, None)
        self._targets[joint] = self._clipped(joint, angle)

    def set_speed(self, joint: str, speed: float) -> None:
        """Let a servo in velocity mode turn at ``speed`` rad/s, without end stops."""
        self._speeds[joint] = speed

    def set_gain(self, joint: str, gain: float) -> None:
        """Set the position gain."""
        self._gains[joint] = gain

    def set_torque(self, joint: str, *, on: bool) -> None:
        """Switch a servo; one that is switched on holds the present angle."""
        self._targets[joint] = self._angles[joint]
        self._velocities[joint] = 0.0
        if on:
            self._driven.add(joint)
        else:
            self._driven.discard(joint)

    def set_angle(self, joint: str, angle: float) -> None:
        """Put a joint at an angle, limited to its range."""
        self._angles[joint] = self._targets[joint] = self._clipped(joint, angle)
        self._velocities[joint] = 0.0

    def step(self, seconds: float) -> None:
        """Let time pass."""
        steps = max(1, math.ceil(seconds / _STEP_S - 1e-9))
        for joint in self._driven:
            for _ in range(steps):
                self._step_joint(joint, seconds / steps)

    def _step_joint(self, joint: str, seconds: float) -> None:
        if joint in self._speeds:
            velocity = self._speeds[joint]
        else:
            rate = self._rate_per_s * self._gains[joint]
            share = 1.0 - math.exp(-rate * seconds)
            velocity = share * (self._targets[joint] - self._angles[joint]) / seconds
            velocity = min(max(velocity, -self._max_speed), self._max_speed)
        self._velocities[joint] = velocity
        self._angles[joint] += velocity * seconds

    def _clipped(self, joint: str, angle: float) -> float:
        low, high = self._ranges[joint]
        return min(max(angle, low), high)
