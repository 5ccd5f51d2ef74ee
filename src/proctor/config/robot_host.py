"""Config of ``proctor robot-host``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from proctor.config.base import Config, plugin_section
from proctor.config.sections.devices import MOST_FPS
from proctor.errors import UsageError
from proctor.robots.base import RobotConfig
from proctor.settings import setting
from proctor.system.loopback import LOOPBACK


@dataclass
class HostSettings:
    """The host's sockets and its loop (--host.*), with LeRobot's names."""

    help_group: ClassVar[str] = "Host"

    address: str = setting(
        "127.0.0.1",
        "IP address to serve on; 0.0.0.0: all networks of this computer, with key_file or open",
    )
    key_file: Path | None = setting(
        None,
        "file of the key that the client must have; it is made if it is missing (default: no key)",
    )
    open: bool = setting(
        False,
        "let every computer that reaches the ports drive the robot without a key, as "
        "LeRobot's clients do",
    )
    port_zmq_cmd: int = setting(5555, "TCP port for actions; 0: any free port", least=0, most=65535)
    port_zmq_observations: int = setting(
        5556, "TCP port for observations; 0: any free port", least=0, most=65535
    )
    connection_time_s: float | None = setting(
        None, "seconds until the host ends (default: no limit)", above=0, most=1e6
    )
    watchdog_timeout_ms: int = setting(
        500, "milliseconds without an action after which the base stops", least=1, most=60_000
    )
    max_loop_freq_hz: int = setting(
        30, "cycles of the control loop per second", least=1, most=MOST_FPS
    )

    def validate(self) -> None:
        """Refuse to serve other computers without a key, unless that is asked for."""
        if self.open and self.key_file is not None:
            raise UsageError(
                "--host.open=true and --host.key_file exclude each other: a client needs the key "
                "or none",
                code="robot.host-access",
            )
        if self.address not in LOOPBACK and not self.open and self.key_file is None:
            raise UsageError(
                f"--host.address={self.address} lets other computers drive the robot: give "
                "--host.key_file=FILE (Proctor's lekiwi_client has --robot.key_file), or "
                "--host.open=true for LeRobot's clients",
                code="robot.host-access",
            )


@dataclass
class RobotHostConfig(Config):
    """Config of ``proctor robot-host``."""

    foreign: ClassVar[tuple[str, ...]] = ("robots",)
    first: ClassVar[str] = (
        "robot.type robot.port robot.id robot.cameras host.address host.key_file host.open "
        "host.port_zmq_cmd host.port_zmq_observations host.watchdog_timeout_ms config_path"
    )

    robot: RobotConfig = plugin_section("robots")
    host: HostSettings = field(default_factory=HostSettings)

    def validate(self) -> None:
        """Refuse invalid values."""
        super().validate()
        self.host.validate()
