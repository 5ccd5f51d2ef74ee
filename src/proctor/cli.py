"""The command line: dispatches to one module per command in ``commands``.

A command's module is imported when the command is called, so that ``proctor --help`` is quick.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module

from proctor.errors import (
    PolicyError,
    ProctorError,
    UsageError,
    WorkerError,
    did_you_mean,
    exit_code_of,
    printable_text,
    strip_control_codes,
)
from proctor.system.streams import make_streams_robust, report_lost_output

COMMANDS = {
    "eval": "evaluate a policy on a benchmark: success rates with confidence intervals",
    "record": "record a policy's episodes as demonstrations, in a LeRobot dataset",
    "report": "write the page of a run: success rates, charts, timeline and episodes",
    "audit": "run a sample of a run's episodes again, one by one, and compare",
    "compare": "compare runs episode by episode, with significance tests",
    "view": "show runs in the browser: a list, and the page of each run",
    "train": "train a policy on demonstrations; resuming is exact, bit by bit",
    "serve": "serve a policy (openpi, vla-eval, GR00T, LeRobot protocols), batching all clients",
    "data": "inspect, check, edit, convert, upload and download LeRobot datasets",
    "list": "list benchmarks, their tasks with instructions and horizons, and policies",
    "doctor": "check this machine: what works, how fast it renders, how to mend the rest",
    "info": "print versions, cores, graphics and extras of this machine",
}
_EXIT_USAGE = 2

_OVERVIEW = """\
Proctor records demonstrations, trains robot policies and evaluates them in simulation.

{commands}

  proctor COMMAND --help  lists the flags of a command

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
    code = _answered(words)
    report_lost_output()
    return code


def _answered(words: list[str]) -> int:
    """Run a command; print errors of the user and interruptions in one line."""
    try:
        return _run(words)
    except ProctorError as error:
        _explain(error)
        return _EXIT_USAGE
    except KeyboardInterrupt as stop:  # outside a run; a run prints how to resume it
        print("interrupted", file=sys.stderr)
        return exit_code_of(stop)


def _run(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        lines = [f"  proctor {name:<8} {what}" for name, what in COMMANDS.items()]
        print(_OVERVIEW.format(commands="\n".join(lines)), end="")
        return 0
    if words[0] == "--version":
        from proctor.version import __version__

        print(f"proctor {__version__}")
        return 0
    if words[0] not in COMMANDS:
        raise UsageError(
            f"unknown command {words[0]!r}{did_you_mean(words[0], COMMANDS)} "
            f"(commands: {', '.join(COMMANDS)})",
            code="command.unknown",
        )
    _check_working_directory()
    run: Callable[[list[str]], int] = import_module(f"proctor.commands.{words[0]}").run
    return run(["--help" if word == "-h" else word for word in words[1:]])


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
