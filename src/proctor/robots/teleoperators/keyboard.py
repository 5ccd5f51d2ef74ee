"""Teleoperation by keyboard (types ``keyboard`` and ``keyboard_ee``).

``keyboard`` moves the joints of the robot, ``keyboard_ee`` its hand:

    forward, back      up, down or w, s        up         e or right shift
    left, right        left, right or a, d     down       c or shift
    gripper open       o or right ctrl         close      l or ctrl

Only an input device (``--teleop.device``) tells shift and ctrl. The arrows left and right also end
and repeat episodes while recording, so use the letters there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from proctor.errors import DeviceNotConnected
from proctor.robots.base import (
    Action,
    Clock,
    KeySource,
    Operator,
    RealClock,
    Robot,
    Teleoperator,
    TeleoperatorConfig,
    TeleoperatorPlugin,
    Unit,
)
from proctor.robots.teleoperators.end_effector import (
    GRIPPER_CLOSE,
    GRIPPER_OPEN,
    GRIPPER_STAY,
    EndEffectorTeleoperator,
    HandMotion,
)
from proctor.robots.teleoperators.joint_jog import JointJog, key_help
from proctor.robots.teleoperators.key_input import KeyInput, key_input
from proctor.settings import setting

_DEVICE = "keyboard as an input device of Linux, as /dev/input/event3 (default: the terminal)"


@dataclass
class KeyboardConfig(TeleoperatorConfig):
    """Flags of the keyboard that moves joints."""

    type: str = "keyboard"
    step: float = setting(2.0, "change of a joint for each press, in degrees or percent")
    device: str | None = setting(None, _DEVICE)

    def __post_init__(self) -> None:
        _check_positive("step", self.step)


@dataclass
class KeyboardEndEffectorConfig(TeleoperatorConfig):
    """Flags of the keyboard that moves the hand."""

    type: str = "keyboard_ee"
    use_gripper: bool = setting(True, "whether keys move the gripper too")
    speed: float = setting(0.1, "speed of the hand in metres per second")
    device: str | None = setting(None, _DEVICE)

    def __post_init__(self) -> None:
        _check_positive("speed", self.speed)


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be more than 0, got {value}")


class KeyboardTeleoperator(Teleoperator):
    """Keys that move the joints of the attached robot."""

    name = "keyboard"

    def __init__(self, config: KeyboardConfig) -> None:
        self.clock: Clock = RealClock()
        self._config = config
        self._keys: KeySource | None = None
        self._input: KeyInput | None = None
        self._jog: JointJog | None = None

    @property
    def is_connected(self) -> bool:
        """Whether keys are collected."""
        return self._input is not None

    @property
    def action_features(self) -> Mapping[str, Unit]:
        """The channels of the attached robot."""
        return {} if self._jog is None else self._jog.channels

    def attach(self, robot: Robot) -> None:
        """Move the joints of ``robot`` from now on."""
        self.clock = robot.clock
        self._jog = JointJog(robot, self._config.step)

    def use_keys(self, keys: KeySource) -> None:
        """Use the keys that the control loop reads."""
        self._keys = keys

    def connect(self, operator: Operator | None = None) -> None:
        """Begin to collect keys, and tell the operator which keys move what."""
        opened = key_input(self._config.device, self._keys)
        opened.open()
        self._input = opened
        if operator is not None and self._jog is not None:
            operator.tell(f"keys: {key_help(self._jog.channels)}; +/- change the step")

    def start_episode(self) -> None:
        """Begin at the pose that the robot has."""
        if self._jog is not None:
            self._jog.restart()

    def get_action(self) -> Action:
        """Return the joint targets after the keys pressed since the last call."""
        if self._input is None or self._jog is None:
            raise DeviceNotConnected(
                "the keyboard is not connected, or not attached to a robot",
                code="teleop.not-attached",
            )
        return self._jog.move(self._input.poll())

    def disconnect(self) -> None:
        """Stop collecting keys."""
        if self._input is not None:
            self._input.close()
            self._input = None


class KeyboardEndEffector(EndEffectorTeleoperator):
    """Keys that move the hand of the attached robot."""

    name = "keyboard_ee"

    def __init__(self, config: KeyboardEndEffectorConfig) -> None:
        super().__init__(use_gripper=config.use_gripper, speed_m_s=config.speed)
        self._device = config.device
        self._keys: KeySource | None = None
        self._input: KeyInput | None = None

    @property
    def is_connected(self) -> bool:
        """Whether keys are collected."""
        return self._input is not None

    def use_keys(self, keys: KeySource) -> None:
        """Use the keys that the control loop reads."""
        self._keys = keys

    def connect(self, operator: Operator | None = None) -> None:
        """Begin to collect keys."""
        opened = key_input(self._device, self._keys)
        opened.open()
        self._input = opened

    def disconnect(self) -> None:
        """Stop collecting keys."""
        if self._input is not None:
            self._input.close()
            self._input = None

    def _motion(self) -> HandMotion:
        assert self._input is not None, "get_action checks the connection"
        held = self._input.poll().held

        def toward(more: set[str], less: set[str]) -> float:
            return float(bool(held & more) - bool(held & less))

        gripper = GRIPPER_STAY
        if self._use_gripper and held & {"l", "ctrl"}:
            gripper = GRIPPER_CLOSE
        elif self._use_gripper and held & {"o", "right_ctrl"}:
            gripper = GRIPPER_OPEN
        return HandMotion(
            forward=toward({"up", "w"}, {"down", "s"}),
            left=toward({"left", "a"}, {"right", "d"}),
            up=toward({"right_shift", "e"}, {"shift", "c"}),
            gripper=gripper,
        )

    def _deltas(self, motion: HandMotion) -> tuple[float, float, float]:
        """Return LeRobot's deltas: the left arrow is +x, and the arrow up is -y."""
        return motion.left, -motion.forward, motion.up


PLUGIN = TeleoperatorPlugin(
    KeyboardConfig, KeyboardTeleoperator, "keys that move a robot's joints, in any terminal"
)
END_EFFECTOR_PLUGIN = TeleoperatorPlugin(
    KeyboardEndEffectorConfig, KeyboardEndEffector, "keys that move a robot's hand"
)
