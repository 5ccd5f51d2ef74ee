"""A tiny robot on a virtual clock, with a scene that judges: two joints, one camera, no bus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from proctor.errors import DeviceNotConnected
from proctor.robots.base import Action, ImageShape, Operator, Robot, RobotObservation, Unit

CHANNELS = ("arm.pos", "gripper.pos")


class VirtualClock:
    """Time that passes only while the loop sleeps."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep_until(self, moment: float) -> None:
        self.time = max(self.time, moment)


class ReachScene:
    """The task is done once the arm has come within a degree of the target."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.target = 0.0
        self.done = False

    def reset(self, seed: int) -> None:
        self.seeds.append(seed)
        self.target = 10.0 + seed % 5
        self.done = False

    def succeeded(self) -> bool:
        return self.done


class ReachRobot(Robot):
    """Moves to its targets at once; a dead bus can be played with ``fail_after``."""

    name = "reach_follower"

    def __init__(self, *, scene: bool = True, camera: bool = True) -> None:
        self.clock = VirtualClock()
        self.world = ReachScene()
        self.scene = self.world if scene else None
        self.cameras: Mapping[str, Any] = {}
        self.position = dict.fromkeys(CHANNELS, 0.0)
        self.sent: list[Action] = []
        self.stops = 0
        self.fail_after: int | None = None
        self._camera = camera
        self._connected = False

    @property
    def is_connected(self) -> bool:
        return self._connected

    @property
    def action_features(self) -> Mapping[str, Unit]:
        return {"arm.pos": Unit.DEGREES, "gripper.pos": Unit.PERCENT}

    @property
    def observation_features(self) -> Mapping[str, Unit | ImageShape]:
        cameras: dict[str, ImageShape] = {"front": (8, 6, 3)} if self._camera else {}
        return {**self.action_features, **cameras}

    @property
    def limits(self) -> Mapping[str, tuple[float, float]]:
        return {"arm.pos": (-90.0, 90.0)}

    def connect(self, operator: Operator | None = None) -> None:
        self._connected = True

    def disconnect(self) -> None:
        self._connected = False

    def get_observation(self) -> RobotObservation:
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                raise DeviceNotConnected("the bus is gone")
        seen: RobotObservation = dict(self.position)
        if self._camera:
            seen["front"] = np.full((8, 6, 3), int(self.world.target), np.uint8)
        return seen

    def send_action(self, action: Action) -> Action:
        self.sent.append(dict(action))
        self.position.update(action)
        self.world.done |= abs(self.position["arm.pos"] - self.world.target) < 1
        return action

    def stop(self) -> None:
        self.stops += 1
