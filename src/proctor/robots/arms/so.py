"""SO-100 and SO-101 arms: six Feetech STS3215 motors. The two models are driven alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from proctor.robots.arms.follower import FollowerConfig, FollowerFields, SerialFollower
from proctor.robots.arms.leader import LeaderConfig, LeaderFields, SerialLeader
from proctor.robots.arms.serial_arm import RETRIES
from proctor.robots.base import Action, RobotPlugin, TeleoperatorPlugin, Unit
from proctor.robots.buses.registers import Motor
from proctor.settings import setting

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll")
GRIPPER = "gripper"
POSITION_MODE = 0
GAINS = {"P_Coefficient": 16, "I_Coefficient": 0, "D_Coefficient": 32}
"""Half of the factory's P gain: the arm shakes otherwise. The values are LeRobot's."""
_GRIPPER_LIMITS = {"Max_Torque_Limit": 500, "Protection_Current": 250, "Overload_Torque": 25}
"""Half of the torque and of the current, and a quarter while overloaded: a gripper that is held
open by an object burns out otherwise. The values are LeRobot's."""


def so_motors(*, use_degrees: bool, prefix: str = "") -> dict[str, Motor]:
    """Return the motors of an SO arm, ids 1 to 6."""
    unit = Unit.DEGREES if use_degrees else Unit.SIGNED_PERCENT
    motors = {
        f"{prefix}{name}": Motor(number, "sts3215", unit)
        for number, name in enumerate(JOINTS, start=1)
    }
    return {**motors, f"{prefix}{GRIPPER}": Motor(6, "sts3215", Unit.PERCENT)}


@dataclass(kw_only=True)
class SoFollowerFields(FollowerFields):
    """Flags of an SO follower, alone or one of two, with LeRobot's names and defaults."""

    use_degrees: bool = setting(True, "joints in degrees; else -100 to 100 of their range")
    position_p_coefficient: int = setting(
        GAINS["P_Coefficient"], "proportional gain of the motors' position control"
    )
    position_i_coefficient: int = setting(
        GAINS["I_Coefficient"], "integral gain of the motors' position control"
    )
    position_d_coefficient: int = setting(
        GAINS["D_Coefficient"], "derivative gain of the motors' position control"
    )
    num_read_retries: int = setting(2, "times a lost reply is asked for again")


@dataclass(kw_only=True)
class SoFollowerConfig(SoFollowerFields, FollowerConfig):
    """Flags of an SO-100 or SO-101 follower."""


class SoFollower(SerialFollower):
    """An SO-100 or SO-101 follower."""

    name = "so_follower"

    def __init__(self, config: SoFollowerConfig) -> None:
        motors = so_motors(use_degrees=config.use_degrees)
        super().__init__(config, motors, config.num_read_retries)
        self._gains = {
            "P_Coefficient": config.position_p_coefficient,
            "I_Coefficient": config.position_i_coefficient,
            "D_Coefficient": config.position_d_coefficient,
        }

    def _configure(self) -> None:
        self.bus.configure_motors()
        for name in self.bus.motors:
            self.bus.write("Operating_Mode", name, POSITION_MODE, retries=RETRIES)
            for register, gain in self._gains.items():
                self.bus.write(register, name, gain, retries=RETRIES)
        for register, value in _GRIPPER_LIMITS.items():
            self.bus.write(register, GRIPPER, value, retries=RETRIES)
        self._torque_on()

    def _prepare_calibration(self) -> None:
        for name in self.bus.motors:
            self.bus.write("Operating_Mode", name, POSITION_MODE, retries=RETRIES)


@dataclass(kw_only=True)
class SoLeaderFields(LeaderFields):
    """Flags of an SO leader, alone or one of two, with LeRobot's names and defaults."""

    use_degrees: bool = setting(True, "joints in degrees; else -100 to 100 of their range")
    num_read_retries: int = setting(2, "times a lost reply is asked for again")


@dataclass(kw_only=True)
class SoLeaderConfig(SoLeaderFields, LeaderConfig):
    """Flags of an SO-100 or SO-101 leader."""


class SoLeader(SerialLeader):
    """An SO-100 or SO-101 leader; its motors can move it to a pose."""

    name = "so_leader"

    def __init__(self, config: SoLeaderConfig) -> None:
        motors = so_motors(use_degrees=config.use_degrees)
        super().__init__(config, motors, config.num_read_retries)

    def _configure(self) -> None:
        self.bus.configure_motors()
        self._prepare_calibration()
        self._lock()

    def _prepare_calibration(self) -> None:
        for name in self.bus.motors:
            self.bus.write("Operating_Mode", name, POSITION_MODE, retries=RETRIES)

    @property
    def feedback_features(self) -> Mapping[str, Unit]:  # type: ignore[override]
        """The channels of the action."""
        return self.action_features

    @property
    def is_actuated(self) -> bool:
        """True: it can be moved to a pose."""
        return True

    def set_torque(self, *, on: bool) -> None:
        """Hold the arm where it is, or let a person move it."""
        if on:
            self._torque_on()
        else:
            self.bus.disable_torque()

    def send_feedback(self, feedback: Action) -> None:
        """Send targets; the arm moves only while torque is on."""
        goals = {
            channel.removesuffix(".pos"): value
            for channel, value in feedback.items()
            if channel in self.action_features
        }
        self.bus.sync_write("Goal_Position", goals)


FOLLOWER = RobotPlugin(SoFollowerConfig, SoFollower, "SO-100 or SO-101 follower arm")
LEADER = TeleoperatorPlugin(SoLeaderConfig, SoLeader, "SO-100 or SO-101 leader arm")
