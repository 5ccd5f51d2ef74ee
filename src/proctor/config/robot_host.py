"""Config of ``proctor robot-host``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from proctor.config.base import Config, plugin_section
from proctor.config.bounds import between
from proctor.config.devices import MOST_FPS, OF_ROBOTS
from proctor.errors import UsageError
from proctor.lerobot_flags import LerobotFlag
from proctor.robots.base import RobotConfig

_MOST_PORT = 65535


@dataclass
class HostSettings:
    """The host's sockets and its loop (--host.*), with LeRobot's names."""

    help_group: ClassVar[str] = "Host"

    address: str = field(
        default="0.0.0.0",  # noqa: S104  the client is another computer
        metadata={"help": "IP address to serve on; 0.0.0.0: all networks of this computer"},
    )
    port_zmq_cmd: int = field(
        default=5555, metadata={"help": "TCP port for actions; 0: any free port"}
    )
    port_zmq_observations: int = field(
        default=5556, metadata={"help": "TCP port for observations; 0: any free port"}
    )
    connection_time_s: float | None = field(
        default=None,
        metadata={"help": "seconds until the host ends", "default_help": "no limit"},
    )
    watchdog_timeout_ms: int = field(
        default=500,
        metadata={"help": "milliseconds without an action after which the base stops"},
    )
    max_loop_freq_hz: int = field(
        default=30, metadata={"help": "cycles of the control loop per second"}
    )

    def validate(self) -> None:
        """Refuse invalid values.

        Raises:
            UsageError: naming the flag.
        """
        between("host.port_zmq_cmd", self.port_zmq_cmd, 0, _MOST_PORT)
        between("host.port_zmq_observations", self.port_zmq_observations, 0, _MOST_PORT)
        between("host.watchdog_timeout_ms", self.watchdog_timeout_ms, 1, 60_000)
        between("host.max_loop_freq_hz", self.max_loop_freq_hz, 1, MOST_FPS)
        seconds = self.connection_time_s
        if seconds is not None and not 0 < seconds <= 1e6:
            raise UsageError(
                f"--host.connection_time_s must be above 0 and at most 1e6, got {seconds:g}",
                code="flag.out-of-range",
            )


@dataclass
class RobotHostConfig(Config):
    """Config of ``proctor robot-host``."""

    foreign: ClassVar[Mapping[str, LerobotFlag]] = OF_ROBOTS
    first: ClassVar[str] = (
        "robot.type robot.port robot.id robot.cameras host.address host.port_zmq_cmd "
        "host.port_zmq_observations host.watchdog_timeout_ms config_path"
    )

    robot: RobotConfig = field(metadata=plugin_section("robots"))
    host: HostSettings = field(default_factory=HostSettings)

    def validate(self) -> None:
        """Refuse invalid values.

        Raises:
            UsageError: naming the flag.
        """
        self.host.validate()
