"""``proctor find-port``: the serial ports of this machine, and the motors on them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proctor.config.flags.command import CommandConfig, run_command
from proctor.errors import BusError, DeviceNotConnected, RobotError, strip_control_codes
from proctor.settings import setting

if TYPE_CHECKING:
    from proctor.robots.base import Operator
    from proctor.robots.buses.discovery import PortInfo

_SETTLE_S = 0.5
"""Time in which the system removes the port of an unplugged adapter."""


@dataclass(kw_only=True)
class FindPortCommand(CommandConfig):
    """List serial ports, find the port of an adapter, or list the motors on a port.

    Without flags: lists the ports, asks to unplug an adapter, and prints the port that is gone. In
    a script, without a terminal, it only lists the ports.
    """

    scan: bool = setting(
        False, "list the motors that answer on every port, with ids, models and baud rates"
    )
    port: str | None = setting(None, "with --scan: ask this port only (default: all ports)")

    def run(self) -> int:
        """Print ports and return the exit code."""
        from proctor.control.terminal.operator import TerminalOperator
        from proctor.robots.buses.discovery import list_ports

        if self.scan or self.port is not None:
            names = [self.port] if self.port is not None else [p.name for p in list_ports()]
            return _scan(names)
        ports = list_ports()
        for port in ports:
            print(strip_control_codes(str(port)))
        if not ports:
            raise DeviceNotConnected(
                "this machine has no serial ports; plug the adapter in", code="robot.port-missing"
            )
        if sys.stdin.isatty():
            print(find_unplugged(ports, list_ports, TerminalOperator()))
        return 0


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_command(FindPortCommand, "proctor find-port", words)


def find_unplugged(
    before: Sequence[PortInfo], list_now: Callable[[], Sequence[PortInfo]], operator: Operator
) -> str:
    """Ask a person to unplug an adapter and return the name of its port."""
    operator.ask("Unplug the adapter's USB cable and press Enter:")
    time.sleep(_SETTLE_S)
    present = {port.name for port in list_now()}
    gone = [port for port in before if port.name not in present]
    if len(gone) != 1:
        names = ", ".join(port.name for port in gone) or "none"
        raise RobotError(f"one port should be gone, but it is {names}", code="robot.port-unclear")
    operator.tell("The port of this adapter is (plug it in again now):")
    return gone[0].stable_name or gone[0].name


def _scan(names: Sequence[str]) -> int:
    """Print the motors on every port; return 1 if no motor answers anywhere."""
    from proctor.robots.buses.discovery import find_motors

    found = 0
    for name in names:
        try:
            motors = find_motors(name)
        except (BusError, DeviceNotConnected) as error:
            if len(names) == 1:
                raise
            print(strip_control_codes(f"{name}: {error}"))
            continue
        found += len(motors)
        print(f"{strip_control_codes(name)}: {len(motors) or 'no'} motor{'s' * (len(motors) != 1)}")
        for motor in motors:
            print(f"  {motor}")
    return 0 if found else 1
