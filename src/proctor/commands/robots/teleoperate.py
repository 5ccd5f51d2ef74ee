"""``proctor teleoperate``: drive a robot with a leader arm or another controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.commands.robots.robot_output import say
from proctor.commands.shared.arguments import parse_flags
from proctor.errors import exit_code_of, strip_control_codes

if TYPE_CHECKING:
    from proctor.config.sections.devices import TeleoperateConfig

_USAGE = """\
proctor teleoperate --robot.type=NAME --teleop.type=NAME [--FLAG=VALUE ...]

Drive a robot with a teleoperator until Ctrl-C, Esc or --teleop_time_s. Nothing is recorded. The
robot moves slowly to the teleoperator's first pose. Backspace is the emergency stop: it switches
every motor off. Without hardware:
  proctor teleoperate --robot.type=so101_follower --robot.port=sim \\
                      --teleop.type=so101_leader --teleop.port=sim --teleop_time_s=3
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.config.builder import build
    from proctor.config.flags.merging import merge_settings
    from proctor.config.sections.devices import TeleoperateConfig

    given = parse_flags(TeleoperateConfig, words, _USAGE)
    if given is None:
        return 0
    return _teleoperate(build(TeleoperateConfig, merge_settings(given)))


def _teleoperate(config: TeleoperateConfig) -> int:
    from proctor.control.loop.session import ControlSession, make_robot, make_teleoperator
    from proctor.control.loop.units import attach_teleoperator
    from proctor.control.teleoperate import teleoperate
    from proctor.control.terminal.keys import TerminalKeys
    from proctor.control.terminal.operator import TerminalOperator
    from proctor.control.terminal.watching import displaying

    for note in config.notes:
        say(f"note: {note}")
    robot, teleop = make_robot(config.robot), make_teleoperator(config.teleop)
    attach_teleoperator(teleop, robot)
    keys = TerminalKeys()
    session = ControlSession(robot, teleop, operator=TerminalOperator(keys), keys=keys)
    title = f"{teleop.name} drives {robot.name}"
    with displaying(config, robot, title, config.fps) as display:
        display.page.say(keys="Esc or q: end   Backspace: motors off")
        with session, session.signals.deferred():
            print(f"{title} at {config.fps} Hz; Ctrl-C ends", flush=True)
            result = teleoperate(session, config.fps, config.teleop_time_s, display)
    print(strip_control_codes(result.text()))
    stop = session.signals.as_interrupt()
    return 0 if stop is None else exit_code_of(stop)
