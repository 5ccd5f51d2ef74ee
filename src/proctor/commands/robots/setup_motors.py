"""``proctor setup-motors``: give the motors of a new arm their ids and baud rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.commands.robots.calibrate import run_with_device

if TYPE_CHECKING:
    from proctor.robots.base import Device, Operator

_USAGE = """\
proctor setup-motors --robot.type=NAME | --teleop.type=NAME [--FLAG=VALUE ...]

Give every motor of an arm its id and baud rate, one motor at a time. A motor that has them already
is left alone, so the command can be started again. Which motors are on a port:
  proctor find-port --scan
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_with_device(words, _USAGE, set_up_motors)


def set_up_motors(device: Device, operator: Operator) -> None:
    """Set up the motors of a device that is not connected."""
    device.set_up_motors(operator)
