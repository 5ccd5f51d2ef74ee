"""``proctor calibrate``: measure the ranges of an arm's joints, with a person's help."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from proctor.commands.shared.arguments import parse_flags

if TYPE_CHECKING:
    from proctor.robots.base import Device, Operator

_USAGE = """\
proctor calibrate --robot.type=NAME | --teleop.type=NAME [--FLAG=VALUE ...]

Calibrate a robot or a teleoperator. The calibration file is LeRobot's, named by --robot.id or
--teleop.id. The motors keep the old calibration until the new one is complete.
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_with_device(words, _USAGE, calibrate)


def calibrate(device: Device, operator: Operator) -> None:
    """Calibrate a device that is not connected."""
    device.calibrate(operator)


def run_with_device(
    words: list[str], usage: str, action: Callable[[Device, Operator], None]
) -> int:
    """Make the device that the flags name, run ``action`` and close the device."""
    import sys

    from proctor.config.builder import build
    from proctor.config.flags.merging import merge_settings
    from proctor.config.sections.devices import OneDeviceConfig
    from proctor.control.loop.session import make_robot, make_teleoperator
    from proctor.control.loop.stop_signals import StopSignals
    from proctor.control.terminal.operator import TerminalOperator
    from proctor.errors import strip_control_codes

    given = parse_flags(OneDeviceConfig, words, usage)
    if given is None:
        return 0
    config = build(OneDeviceConfig, merge_settings(given))
    for note in config.notes:
        print(strip_control_codes(f"note: {note}"), file=sys.stderr)
    device: Device
    if config.robot is not None:
        device = make_robot(config.robot)
    else:
        assert config.teleop is not None
        device = make_teleoperator(config.teleop)
    with StopSignals():
        try:
            action(device, TerminalOperator())
        finally:
            device.disconnect()
    return 0
