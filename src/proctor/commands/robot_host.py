"""``proctor robot-host``: serve a robot to another computer, as LeRobot's LeKiwi host does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.commands.arguments import parse_flags
from proctor.commands.robot_output import lost_replies, say
from proctor.errors import exit_code_of, strip_control_codes

if TYPE_CHECKING:
    from proctor.config.robot_host import RobotHostConfig

_USAGE = """\
proctor robot-host --robot.type=lekiwi [--FLAG=VALUE ...]

Run on the robot's own computer: send its state and images to a client, and execute the client's
actions. On the other computer, --robot.type=lekiwi_client --robot.remote_ip=ADDRESS drives it. The
base stops when no action comes. Everyone who reaches the ports can drive the robot.
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.config.builder import build
    from proctor.config.merging import merge_settings
    from proctor.config.robot_host import RobotHostConfig

    given = parse_flags(RobotHostConfig, words, _USAGE)
    if given is None:
        return 0
    return _serve(build(RobotHostConfig, merge_settings(given)))


def _serve(config: RobotHostConfig) -> int:
    from proctor.control.keys import TerminalKeys
    from proctor.control.operator import TerminalOperator
    from proctor.control.robot_host import HostSockets, serve_robot
    from proctor.control.session import ControlSession, make_robot

    for note in config.notes:
        say(f"note: {note}")
    robot, keys = make_robot(config.robot), TerminalKeys()
    session = ControlSession(robot, operator=TerminalOperator(keys), keys=keys)
    with HostSockets(config.host) as sockets, session, session.signals.deferred():
        ports = f"{sockets.command_port} (actions) and {sockets.observation_port} (observations)"
        say(f"{robot.name} is served on {config.host.address}, ports {ports}; Ctrl-C ends")
        result = serve_robot(session, sockets, config.host)
    print(f"{result.actions} actions; {result.jitter}")
    if result.watchdog_stops:
        print(f"no action came in time: {result.watchdog_stops} stops of the base")
    if result.invalid:
        print(f"{result.invalid} messages were no actions of this robot")
    for line in lost_replies(result.health):
        print(strip_control_codes(line))
    stop = session.signals.as_interrupt()
    return 0 if stop is None else exit_code_of(stop)
