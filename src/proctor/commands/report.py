"""``proctor report``: write the page of a run or a training."""

from __future__ import annotations

from proctor.errors import UsageError

_USAGE = """\
proctor report RUN [--output=FILE]

Writes the page of a run or a training, finished or not: RUN/report.html, or FILE. It is one file
that any browser shows without a network; videos stay in the run folder.
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.config.flags import path_of, split_argv
    from proctor.report.page import write_page
    from proctor.report.training_page import write_training_page
    from proctor.runs.training import RECORD_FILE

    positional, flags = split_argv(words, {"help"})
    if "help" in flags:
        print(_USAGE, end="")
        return 0
    output = flags.pop("output", None)
    if flags:
        raise UsageError(f"unknown flag --{next(iter(flags))} (report takes --output=FILE)")
    if len(positional) != 1:
        raise UsageError("report takes one run folder: proctor report RUN")
    folder = path_of(positional[0])
    write = write_training_page if (folder / RECORD_FILE).is_file() else write_page
    path = write(folder, None if output is None else path_of(output))
    print(f"report: {path}")
    return 0
