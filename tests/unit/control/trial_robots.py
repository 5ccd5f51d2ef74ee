"""A tiny robot on a virtual clock, with a scene that judges: two joints, one camera, no bus.

``--robot.type=tests.unit.control.trial_robots:ROBOT`` makes it for a command, and
``--policy.type=tests.unit.control.trial_robots:good`` (or ``bad``) a policy for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from proctor.errors import DeviceNotConnected
from proctor.features import Array, Interface
from proctor.fingerprint import PRESENTATION
from proctor.policies.base import Batch, Policy, PolicyConfig, PolicySpec
from proctor.robots.base import (
    Action,
    ImageShape,
    Operator,
    Robot,
    RobotConfig,
    RobotObservation,
    RobotPlugin,
    Unit,
)
from proctor.types import EpisodeSpec

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

    state_names = ("target.x",)

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.target = 0.0
        self.done = False

    def reset(self, seed: int) -> None:
        self.seeds.append(seed)
        self.target = 10.0 + seed % 5
        self.done = False

    def state(self) -> Array:
        return np.array([self.target], np.float32)

    def joint_positions(self) -> Array:
        return np.zeros(len(CHANNELS), np.float32)

    def succeeded(self) -> bool:
        return self.done


class ReachRobot(Robot):
    """Moves to its targets at once; a dead bus can be played with ``fail_after``."""

    name = "reach_follower"
    made: ClassVar[list[ReachRobot]] = []

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
        ReachRobot.made.append(self)

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


@dataclass
class ReachConfig(RobotConfig):
    """Flags of the tiny robot."""

    port: str = field(default="sim", metadata={"help": "port"})
    speed: float = field(default=1.0, metadata={"help": "speed"})
    fail_after: int | None = field(
        default=None, metadata={"help": "observations until it fails"} | PRESENTATION
    )


def _make(config: ReachConfig) -> ReachRobot:
    robot = ReachRobot()
    robot.fail_after = config.fail_after
    return robot


ROBOT = RobotPlugin(ReachConfig, _make, "a tiny robot for tests")


class ReachPolicy(Policy):
    """Reads the target from the image; ``bad`` knows it in a third of the scenes only."""

    spec = PolicySpec("reach", ("observation.images.front",))
    acted: ClassVar[list[tuple[str, int]]] = []
    """(name, seed) of every episode, in the order of the trials."""

    def __init__(self, name: str) -> None:
        self._name = name

    def new_episode(self, spec: EpisodeSpec) -> EpisodeSpec:
        ReachPolicy.acted.append((self._name, spec.seed))
        return spec

    def act(self, batch: Batch) -> Array:
        target = float(batch.observations["observation.images.front"].max())
        knows = self._name == "good" or batch.queries[0].state.seed % 3 == 0
        return np.array([[[target if knows else 50.0, 0.0]]], np.float32)


def good(config: PolicyConfig, interface: Interface) -> Policy:
    """Solve every scene."""
    return ReachPolicy("good")


def bad(config: PolicyConfig, interface: Interface) -> Policy:
    """Solve a third of the scenes."""
    return ReachPolicy("bad")
