"""``proctor replay``: repeat a recorded episode on a robot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.commands.robots.robot_output import say
from proctor.commands.shared.arguments import parse_flags
from proctor.errors import exit_code_of, strip_control_codes

if TYPE_CHECKING:
    from proctor.config.replay import ReplayConfig
    from proctor.control.replay import RecordedActions, ReplayResult

EXIT_INCOMPLETE = 1
_USAGE = """\
proctor replay --robot.type=NAME --dataset.repo_id=USER/NAME --dataset.episode=N [--FLAG=VALUE ...]

Send the actions of a recorded episode to a robot, at the dataset's rate. Channels and units must be
those of the robot. The robot moves slowly from its pose to the first action. Esc or Ctrl-C ends it.
Exit code 1: it ended early.
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.config.builder import build
    from proctor.config.flags.merging import merge_settings
    from proctor.config.replay import ReplayConfig

    given = parse_flags(ReplayConfig, words, _USAGE)
    if given is None:
        return 0
    return _replay(build(ReplayConfig, merge_settings(given)))


def _replay(config: ReplayConfig) -> int:
    from proctor.control.loop.session import ControlSession, make_robot
    from proctor.control.replay import read_actions, replay
    from proctor.control.terminal.keys import TerminalKeys
    from proctor.control.terminal.operator import TerminalOperator

    for note in config.notes:
        say(f"note: {note}")
    robot = make_robot(config.robot)
    recorded = read_actions(config, robot)
    if not recorded.has_units:
        say("note: the dataset does not state its units; check that the robot has the same ones")
    keys = TerminalKeys()
    session = ControlSession(robot, operator=TerminalOperator(keys), keys=keys)
    with session, session.signals.deferred():
        n = len(recorded.actions)
        say(f"{robot.name} repeats {n} actions at {recorded.fps} Hz; Esc or Ctrl-C ends")
        result = replay(session, recorded)
    _show(recorded, result)
    stop = session.signals.as_interrupt()
    if stop is not None:
        return exit_code_of(stop)
    return 0 if result.sent == len(recorded.actions) else EXIT_INCOMPLETE


def _show(recorded: RecordedActions, result: ReplayResult) -> None:
    print(f"{result.sent} of {len(recorded.actions)} actions sent; {result.jitter}")
    if result.changed:
        counts = ", ".join(f"{name} {n}" for name, n in result.changed.items())
        print(strip_control_codes(f"limits changed actions: {counts}"))
    if result.success is not None:
        print(f"success in the simulated scene: {'yes' if result.success else 'no'}")
