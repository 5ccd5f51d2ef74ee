"""Koch v1.1 arms: six Dynamixel X motors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from proctor.robots.arms.follower import FollowerConfig, SerialFollower
from proctor.robots.arms.leader import LeaderConfig, SerialLeader
from proctor.robots.arms.serial_arm import RETRIES, SerialArm
from proctor.robots.arms.so import GRIPPER, JOINTS
from proctor.robots.base import RobotPlugin, TeleoperatorPlugin, Unit
from proctor.robots.buses.registers import Motor
from proctor.settings import setting

_EXTENDED_POSITION_MODE = 4
"""Positions may leave 0 to 4095: a joint may have been mounted across the encoder's end."""
_CURRENT_POSITION_MODE = 5
"""Position with limited current: the gripper yields."""
_ELBOW_GAINS = {"Position_P_Gain": 1500, "Position_I_Gain": 0, "Position_D_Gain": 600}
_FOLLOWER_MODELS = ("xl430-w250",) * 2 + ("xl330-m288",) * 4
_LEADER_MODELS = ("xl330-m077",) * 6


def _motors(models: Sequence[str], unit: Unit) -> dict[str, Motor]:
    units = [unit] * len(JOINTS) + [Unit.PERCENT]
    named = zip((*JOINTS, GRIPPER), models, units, strict=True)
    return {
        name: Motor(number, model, its_unit)
        for number, (name, model, its_unit) in enumerate(named, start=1)
    }


class _KochArm(SerialArm):
    """What follower and leader share."""

    full_turn_joints: ClassVar[tuple[str, ...]] = ("shoulder_pan", "wrist_roll")

    def _prepare_calibration(self) -> None:
        for name in self.bus.motors:
            self.bus.write("Operating_Mode", name, _EXTENDED_POSITION_MODE, retries=RETRIES)

    def _set_modes(self) -> None:
        self.bus.configure_motors()
        for name in self.bus.motors:
            mode = _CURRENT_POSITION_MODE if name == GRIPPER else _EXTENDED_POSITION_MODE
            self.bus.write("Operating_Mode", name, mode, retries=RETRIES)


@dataclass(kw_only=True)
class KochFollowerConfig(FollowerConfig):
    """Flags of a Koch follower, with LeRobot's names and defaults."""

    use_degrees: bool = setting(False, "joints in degrees; else -100 to 100 of their range")


class KochFollower(_KochArm, SerialFollower):
    """A Koch follower."""

    name = "koch_follower"

    def __init__(self, config: KochFollowerConfig) -> None:
        unit = Unit.DEGREES if config.use_degrees else Unit.SIGNED_PERCENT
        super().__init__(config, _motors(_FOLLOWER_MODELS, unit), RETRIES)

    def _configure(self) -> None:
        self._set_modes()
        for register, gain in _ELBOW_GAINS.items():
            self.bus.write(register, "elbow_flex", gain, retries=RETRIES)
        self._torque_on()


@dataclass(kw_only=True)
class KochLeaderConfig(LeaderConfig):
    """Flags of a Koch leader, with LeRobot's names and defaults."""

    gripper_open_pos: float = setting(50.0, "position to which the gripper springs open, 0 to 100")


class KochLeader(_KochArm, SerialLeader):
    """A Koch leader; its gripper springs open, the other joints move freely."""

    name = "koch_leader"
    drive_modes: ClassVar[Mapping[str, int]] = {"elbow_flex": 1}

    def __init__(self, config: KochLeaderConfig) -> None:
        super().__init__(config, _motors(_LEADER_MODELS, Unit.SIGNED_PERCENT), RETRIES)
        self._open_position = config.gripper_open_pos

    def _configure(self) -> None:
        self._set_modes()
        self._torque_on([GRIPPER])
        self.bus.write("Goal_Position", GRIPPER, self._open_position, retries=RETRIES)


FOLLOWER = RobotPlugin(KochFollowerConfig, KochFollower, "Koch follower arm")
LEADER = TeleoperatorPlugin(KochLeaderConfig, KochLeader, "Koch leader arm")
