"""Configs of commands that drive robots: the sections ``--robot.*`` and ``--teleop.*``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proctor.config.base import Config, plugin_section
from proctor.config.sections.display import DisplayFlags
from proctor.errors import UsageError
from proctor.robots.base import RobotConfig, TeleoperatorConfig
from proctor.settings import setting

MOST_FPS = 1000


@dataclass
class RobotCommandConfig(Config):
    """Base class of configs of commands that drive a robot, with or without a teleoperator."""

    foreign: ClassVar[tuple[str, ...]] = ("robots",)

    robot: RobotConfig = plugin_section("robots")
    teleop: TeleoperatorConfig | None = plugin_section("teleoperators", optional=True)


@dataclass
class OneDeviceConfig(Config):
    """Config of ``proctor calibrate`` and ``proctor setup-motors``: a robot or a teleoperator."""

    foreign: ClassVar[tuple[str, ...]] = ("robots",)
    first: ClassVar[str] = (
        "robot.type robot.port robot.id teleop.type teleop.port teleop.id config_path"
    )

    robot: RobotConfig | None = plugin_section("robots", optional=True)
    teleop: TeleoperatorConfig | None = plugin_section("teleoperators", optional=True)

    def validate(self) -> None:
        """Refuse two devices, and none."""
        super().validate()
        if self.robot is None and self.teleop is None:
            raise UsageError(
                "no device: give --robot.type=NAME or --teleop.type=NAME", code="flag.missing"
            )
        if self.robot is not None and self.teleop is not None:
            raise UsageError(
                "--robot.* and --teleop.* are two devices; give one of them", code="flag.conflict"
            )


@dataclass
class TeleoperateConfig(DisplayFlags, Config):
    """Config of ``proctor teleoperate``."""

    foreign: ClassVar[tuple[str, ...]] = ("robots",)
    help_group: ClassVar[str] = "Control loop"
    first: ClassVar[str] = (
        "robot.type robot.port robot.id robot.cameras teleop.type teleop.port teleop.id "
        "fps teleop_time_s live display_data config_path"
    )

    robot: RobotConfig = plugin_section("robots")
    teleop: TeleoperatorConfig = plugin_section("teleoperators")
    fps: int = setting(60, "cycles of the control loop per second", least=1, most=MOST_FPS)
    teleop_time_s: float | None = setting(
        None, "seconds until the command ends (default: no limit)", above=0, most=1e6
    )
