"""Leader arms: a person moves them, and their positions are the action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from proctor.robots.arms.serial_arm import SerialArm
from proctor.robots.base import Action, Teleoperator, TeleoperatorConfig
from proctor.robots.buses.registers import Motor


@dataclass(kw_only=True)
class LeaderFields:
    """Flags of one leader arm, alone or one of two."""

    help_group: ClassVar[str] = "Teleoperator"

    port: str = field(
        metadata={
            "help": "serial port of the motors; sim: the simulated leader",
            "placeholder": "/dev/ttyACM1",
        }
    )


@dataclass(kw_only=True)
class LeaderConfig(LeaderFields, TeleoperatorConfig):
    """Flags of every leader arm."""


class SerialLeader(SerialArm, Teleoperator):
    """A leader arm on a serial bus."""

    calibration_kind: ClassVar[str] = "teleoperators"

    def __init__(self, config: LeaderConfig, motors: Mapping[str, Motor], retries: int) -> None:
        super().__init__(config, motors)
        self._retries = retries

    def get_action(self) -> Action:
        """Read the positions in one request."""
        positions = self._read("Present_Position", self._joints, self._retries)
        return {f"{name}.pos": value for name, value in positions.items()}
