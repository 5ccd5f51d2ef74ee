"""``proctor view``: a folder of runs in the browser."""

from __future__ import annotations

from proctor.commands.serve_pages import port_of, serve_until_interrupted
from proctor.errors import UsageError

_USAGE = """\
proctor view FOLDER [--port=8642] [--host=127.0.0.1]

Serves the runs and trainings in and below FOLDER until Ctrl-C: a list, and the page of each, which
follows one that is going on. On another host than this machine's own address, the
printed address has a token.
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.config.flags import path_of, split_argv
    from proctor.report.serve import RunServer

    positional, flags = split_argv(words, {"help"})
    if "help" in flags:
        print(_USAGE, end="")
        return 0
    host, port = flags.pop("host", "127.0.0.1"), flags.pop("port", "8642")
    if flags:
        raise UsageError(f"unknown flag --{next(iter(flags))} (view takes --port and --host)")
    if len(positional) != 1 or not path_of(positional[0]).is_dir():
        raise UsageError("view takes one folder that holds runs: proctor view outputs")
    return serve_until_interrupted(RunServer(path_of(positional[0]), host, port_of(port)))
