"""The command line: dispatches to one module per command in ``commands``.

A command's module is imported when the command is called, so that ``proctor --help`` is quick.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module

from proctor.commands.shared.names import COMMANDS, command_module
from proctor.errors import (
    PolicyError,
    ProctorError,
    RobotError,
    UsageError,
    WorkerError,
    did_you_mean,
    exit_code_of,
    printable_text,
    strip_control_codes,
)
from proctor.system.platform.environment import hidden_keys
from proctor.system.signals import termination_raises
from proctor.system.streams import make_streams_robust, report_lost_output

_EXIT_ROBOT, _EXIT_USAGE = 1, 2

_OVERVIEW = """\
Proctor records demonstrations, trains robot policies and evaluates them, in simulation and on
robots.

{commands}

  proctor COMMAND --help       lists the flags of a command
  proctor COMMAND --help WORD  searches in them
  proctor --help WORD          searches in the flags of all commands

Example:
  proctor eval --policy.type=expert --env.type=metaworld --env.task=reach-v3,push-v3 \\
               --eval.n_episodes=10 --output_dir=outputs/demo
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    make_streams_robust()
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # it may contain keys, and libraries such as W&B upload it
        del sys.argv[1:]
    if argv is None and os.environ.get("PROCTOR_COMPLETE"):
        from proctor.commands.completion import print_candidates

        return print_candidates(words)
    with hidden_keys(), termination_raises():
        code = _answered(words)
    report_lost_output()
    return code


def _answered(words: list[str]) -> int:
    """Run a command; print errors of the user and interruptions in one line."""
    try:
        return _run(words)
    except ProctorError as error:
        _explain(error)
        return _EXIT_ROBOT if isinstance(error, RobotError) else _EXIT_USAGE
    except OSError as error:
        from proctor.system.files import system_reason

        reason = system_reason(error)
        if reason is None:
            raise
        place = "" if error.filename is None else f"{error.filename}: "
        print(strip_control_codes(f"proctor: error: {place}{reason}"), file=sys.stderr)
        return _EXIT_USAGE
    except KeyboardInterrupt as stop:  # outside a run; a run prints how to resume it
        print("interrupted", file=sys.stderr)
        return exit_code_of(stop)


def _run(words: list[str]) -> int:
    if len(words) > 1 and words[0] in ("--help", "-h", "help"):
        return _search_help(words[1:])
    if not words or words[0] in ("--help", "-h", "help"):
        lines = [f"  proctor {name:<12} {what}" for name, what in COMMANDS.items()]
        print(_OVERVIEW.format(commands="\n".join(lines)), end="")
        return 0
    if words[0] == "--version":
        from proctor.version import __version__

        print(f"proctor {__version__}")
        return 0
    if words[0] not in COMMANDS:
        from proctor.commands.lerobot import translate

        words = translate(words) or words
    if words[0] not in COMMANDS:
        raise UsageError(
            f"unknown command {words[0]!r}{did_you_mean(words[0], COMMANDS)} "
            f"(commands: {', '.join(COMMANDS)})",
            code="command.unknown",
        )
    _check_working_directory()
    run: Callable[[list[str]], int] = import_module(command_module(words[0])).run
    return run(["--help" if word == "-h" else word for word in words[1:]])


def _search_help(words: list[str]) -> int:
    """Print the help of a command, or the flags of all commands that contain ``words``."""
    if words[0] in COMMANDS:
        return _run([words[0], "--help", *words[1:]])
    from proctor.commands.shared.all_flags import flags_of_commands
    from proctor.config.flags.help_lines import help_width, print_help
    from proctor.config.flags.help_search import search_help

    print_help(search_help("proctor", flags_of_commands(), words, help_width()))
    return 0


def _check_working_directory() -> None:
    try:
        os.getcwd()  # noqa: PTH109  Path.cwd() asks the same, but imports more
    except OSError:
        raise UsageError(
            "the working directory is gone; change to one that exists",
            code="system.no-working-directory",
        ) from None


def _explain(error: ProctorError) -> None:
    """Print the error in one line, after the traceback of a failed policy or worker."""
    if isinstance(error, PolicyError | WorkerError) and error.__cause__ is not None:
        cause = error.__cause__
        of_worker = isinstance(cause, WorkerError)  # its text is a traceback already
        text = str(cause) if of_worker else "".join(traceback.format_exception(cause)).strip()
        print(printable_text(text), file=sys.stderr)
    print(f"proctor: error: {strip_control_codes(str(error))}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
