"""``proctor report``: write the page of a run or a training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proctor.errors import UsageError, did_you_mean

_USAGE = """\
proctor report RUN [--output=FILE] [--csv[=FILE]] [--markdown[=FILE]]

Writes the page of a run or a training, finished or not: RUN/report.html, or FILE. It is one file
that any browser shows without a network; videos stay in the run folder.

  --csv        the episodes, a line each, to RUN/episodes.csv; --csv=- prints them
  --markdown   the results as a table, to RUN/report.md; --markdown=- prints it

With one of these and without --output no page is written.
"""
_TABLES = {"csv": "episodes.csv", "markdown": "report.md"}


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.config.flags import path_of, split_argv

    positional, flags = split_argv(words, {"help", *_TABLES})
    if "help" in flags:
        print(_USAGE, end="")
        return 0
    output = flags.pop("output", None)
    tables = {name: flags.pop(name) for name in _TABLES if name in flags}
    if flags:
        name = next(iter(flags))
        near = did_you_mean(name, ["output", *_TABLES])
        raise UsageError(f"unknown flag --{name}{near} (report takes --output, --csv, --markdown)")
    if len(positional) != 1:
        raise UsageError("report takes one run folder: proctor report RUN")
    folder = path_of(positional[0])
    if tables:
        _write_tables(folder, tables)
    if output is not None or not tables:
        _write_page(folder, None if output is None else path_of(output))
    return 0


def _write_page(folder: Path, output: Path | None) -> None:
    from proctor.report.page import write_page
    from proctor.report.training_page import write_training_page
    from proctor.runs.training import RECORD_FILE

    write = write_training_page if (folder / RECORD_FILE).is_file() else write_page
    print(f"report: {write(folder, output)}")


def _write_tables(folder: Path, tables: Mapping[str, str]) -> None:
    """Write or print what was asked for; ``-`` prints it, and nothing else."""
    from proctor.config.flags import path_of
    from proctor.report.run import load_run
    from proctor.runs.folder import write_run_file

    results = load_run(folder)
    texts = {"csv": results.to_csv, "markdown": results.to_markdown}
    for name, given in tables.items():
        if given == "-":
            print(texts[name](), end="")
            continue
        path = folder / _TABLES[name] if given.lower() == "true" else path_of(given)
        write_run_file(path, texts[name]())
        print(f"{name}: {path}")
