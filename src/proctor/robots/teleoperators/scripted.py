"""A script that plays the person at the simulated SO-101 (type ``scripted``).

It is the expert of the benchmark ``so101``. It sees the true poses of arm, cube and bin, so it
works with ``--robot.port=sim`` only. As a person does, it moves the arm from where it is: its
targets are the robot's own readings plus the expert's step, so any calibration will do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from proctor.benchmarks.so101.expert import So101Expert
from proctor.benchmarks.so101.kinematics import CHANNELS
from proctor.errors import DeviceNotConnected, UsageError
from proctor.features import ENVIRONMENT_STATE, STATE
from proctor.robots.base import (
    Action,
    Clock,
    Operator,
    RealClock,
    Robot,
    SimulatedScene,
    Teleoperator,
    TeleoperatorConfig,
    TeleoperatorPlugin,
    Unit,
)
from proctor.robots.teleoperators.end_effector import SO101_UNITS
from proctor.settings import setting


@dataclass
class ScriptedConfig(TeleoperatorConfig):
    """Flags of the script."""

    type: str = "scripted"
    noise: float = setting(
        0.0, "standard deviation of noise on every target, in degrees and percent (default: exact)"
    )
    seed: int = setting(0, "seed of the noise; episode i uses seed + i")

    def __post_init__(self) -> None:
        if not 0 <= self.noise < np.inf:
            raise ValueError(f"noise must be 0 or more, got {self.noise}")
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more, got {self.seed}")


class ScriptedTeleoperator(Teleoperator):
    """Picks the cube up and drops it into the bin, again in every episode."""

    name = "scripted"
    is_scripted = True

    def __init__(self, config: ScriptedConfig) -> None:
        self.clock: Clock = RealClock()
        self._config = config
        self._expert = So101Expert()
        self._robot: Robot | None = None
        self._scene: SimulatedScene | None = None
        self._connected = False
        self._episode = -1
        self._rng = np.random.default_rng(config.seed)

    @property
    def is_connected(self) -> bool:
        """Whether ``connect`` was called."""
        return self._connected

    @property
    def action_features(self) -> Mapping[str, Unit]:
        """The channels of an SO-101."""
        return SO101_UNITS

    def connect(self, operator: Operator | None = None) -> None:
        """Begin; there is no device."""
        self._connected = True

    def disconnect(self) -> None:
        """End."""
        self._connected = False

    def attach(self, robot: Robot) -> None:
        """Learn the scene of ``robot``."""
        if robot.scene is None:
            raise UsageError(
                "--teleop.type=scripted drives the simulated arm only; use --robot.port=sim",
                code="teleop.needs-simulation",
            )
        if dict(robot.action_features) != SO101_UNITS:
            units = ", ".join(sorted({unit.value for unit in robot.action_features.values()}))
            raise UsageError(
                f"--teleop.type=scripted drives an SO-101 in degrees, not {robot.name} in {units}",
                code="teleop.wrong-units",
            )
        self._robot, self._scene = robot, robot.scene
        self.clock = robot.clock

    def start_episode(self) -> None:
        """Draw other noise than in the episode before."""
        self._episode += 1
        self._rng = np.random.default_rng(self._config.seed + self._episode)

    def get_action(self) -> Action:
        """Return the expert's targets for the present state of the scene."""
        if self._robot is None or self._scene is None or not self._connected:
            raise DeviceNotConnected(
                "the scripted teleoperator is not attached to a robot", code="teleop.not-attached"
            )
        true = np.asarray(self._scene.joint_positions(), dtype=np.float64)
        wanted = self._expert({STATE: true, ENVIRONMENT_STATE: self._scene.state()})
        read = self._robot.get_observation()
        targets = np.array([read[name] for name in CHANNELS]) + (wanted - true)
        if self._config.noise:
            targets = targets + self._rng.normal(0.0, self._config.noise, targets.shape)
        return dict(zip(CHANNELS, map(float, targets), strict=True))


PLUGIN = TeleoperatorPlugin(
    ScriptedConfig, ScriptedTeleoperator, "a script that picks the simulated SO-101's cube"
)
