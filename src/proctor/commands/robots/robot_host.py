"""``proctor robot-host``: serve a robot to another computer, as LeRobot's LeKiwi host does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.commands.robots.robot_output import lost_replies, say
from proctor.commands.shared.arguments import parse_flags
from proctor.errors import exit_code_of, strip_control_codes

if TYPE_CHECKING:
    from proctor.config.robot_host import HostSettings, RobotHostConfig

_USAGE = """\
proctor robot-host --robot.type=lekiwi [--FLAG=VALUE ...]

Run on the robot's own computer: send its state and images to a client, and execute the client's
actions. On the other computer, --robot.type=lekiwi_client --robot.remote_ip=ADDRESS drives it. The
base stops when no action comes. One client at a time drives the robot.
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.config.builder import build
    from proctor.config.flags.merging import merge_settings
    from proctor.config.robot_host import RobotHostConfig

    given = parse_flags(RobotHostConfig, words, _USAGE)
    if given is None:
        return 0
    return _serve(build(RobotHostConfig, merge_settings(given)))


def _serve(config: RobotHostConfig) -> int:
    from proctor.control.host_ports import HostPorts
    from proctor.control.loop.session import ControlSession, make_robot
    from proctor.control.robot_host import serve_robot
    from proctor.control.terminal.keys import TerminalKeys
    from proctor.control.terminal.operator import TerminalOperator

    for note in config.notes:
        say(f"note: {note}")
    _prepare_access(config.host)
    robot, keys = make_robot(config.robot), TerminalKeys()
    session = ControlSession(robot, operator=TerminalOperator(keys), keys=keys)
    with HostPorts(config.host, say) as ports, session, session.signals.deferred():
        numbers = f"{ports.command_port} (actions) and {ports.observation_port} (observations)"
        say(f"{robot.name} is served on {config.host.address}, ports {numbers}; Ctrl-C ends")
        result = serve_robot(session, ports, config.host, say)
    print(f"{result.actions} actions; {result.jitter}")
    if result.watchdog_stops:
        print(f"no action came in time: {result.watchdog_stops} stops of the base")
    if result.invalid:
        print(f"{result.invalid} messages were no actions of this robot")
    for line in lost_replies(result.health):
        print(strip_control_codes(line))
    stop = session.signals.as_interrupt()
    return 0 if stop is None else exit_code_of(stop)


def _prepare_access(settings: HostSettings) -> None:
    """Make the key if it is missing, and say who can drive the robot."""
    from proctor.robots.host_key import make_host_key
    from proctor.system.loopback import LOOPBACK

    file = settings.key_file
    if file is not None and make_host_key(file):
        say(
            f"made the key {file}; copy it to the computer that drives the robot (scp {file} "
            f"USER@COMPUTER:) and give --robot.key_file={file.name} there"
        )
    if settings.open:
        say("open: every computer that reaches the ports can drive the robot and see its cameras")
    elif settings.address in LOOPBACK:
        say(
            "only this computer can connect; for others: --host.address=0.0.0.0 with "
            "--host.key_file=FILE, or --host.open=true for LeRobot's clients"
        )
