"""A fake robot with the channels of an SO-101, at once at its targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from proctor.benchmarks.so101.kinematics import (
    CHANNELS,
    JOINT_NAMES,
    forward,
    from_units,
    unit_range,
)
from proctor.benchmarks.so101.world import HOME
from proctor.robots.base import Action, Unit
from tests.fake_robots import FakeRobot, VirtualClock

UNITS = dict.fromkeys(CHANNELS[:-1], Unit.DEGREES) | {CHANNELS[-1]: Unit.PERCENT}


class So101Robot(FakeRobot):
    """Moves to its targets at once."""

    name = "so_follower"

    def __init__(self) -> None:
        super().__init__(clock=VirtualClock())
        self.units = dict(UNITS)
        self.positions = dict(zip(CHANNELS, HOME, strict=True))

    @property
    def action_features(self) -> Mapping[str, Unit]:
        return self.units

    @property
    def limits(self) -> Mapping[str, tuple[float, float]]:
        return {f"{name}.pos": unit_range(name) for name in JOINT_NAMES}

    def send_action(self, action: Action) -> Action:
        self.positions |= action
        return action


def hand_position(joints: Mapping[str, float]) -> Any:
    """Return where the hand is for these values of the channels, in metres."""
    angles = from_units(np.array([joints[channel] for channel in CHANNELS]))
    return forward(np.array([angles[name] for name in JOINT_NAMES[:-1]]))[:3, 3]
