"""``proctor compare``: what changed between runs, and whether by more than chance."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.errors import UsageError, strip_control_codes

if TYPE_CHECKING:
    from proctor.report.comparison import Comparison, Criteria

EXIT_WORSE = 3
_FLAGS = ("help", "fail-if-worse", "alpha", "json", "html", "unpaired")

_USAGE = """\
proctor compare A B [C ...] [--fail-if-worse=0.02] [--alpha=0.05] [--unpaired]
                [--json=FILE] [--html=FILE]

Compares the runs B, C ... with the run A, episode by episode: those of the same task, seed and
init state are pairs. A star marks a task that changed beyond chance (Holm-corrected, as are all
verdicts where there are several runs). Writes a page with charts, all pairs and their videos side
by side: B/compare.html.

  --fail-if-worse=float
      exit with 3 when a run is worse than A by more than this (0.02: two points): when the
      one-sided test of "worse by at most this" rejects at level alpha
  --alpha=float
      level of every test; the intervals cover 1 - alpha (default: 0.05)
  --json=path
      write the numbers to this file
  --html=path
      write the page to this file (default: compare.html in the folder of B, the second run)
  --unpaired
      treat the runs as separate samples of each task, as when their seeds differ
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.config.flags import check_known, path_of, split_argv

    positional, flags = split_argv(words, {"help", "unpaired"})
    check_known(flags, [], _FLAGS)
    if "help" in flags:
        print(_USAGE, end="")
        return 0
    if len(positional) < 2:
        raise UsageError("compare takes two run folders or more: proctor compare A B [C ...]")
    criteria, gate = _criteria(flags), "fail-if-worse" in flags
    files: dict[str, Path] = {
        name: path_of(flags[name]) for name in ("json", "html") if name in flags
    }
    return _compare([path_of(word) for word in positional], criteria, files, gate=gate)


def _compare(paths: list[Path], criteria: Criteria, files: dict[str, Path], *, gate: bool) -> int:
    """Compare the runs; ``files`` says where the numbers (json) and the page (html) go."""
    from proctor.report.compare_page import write_compare_page
    from proctor.report.comparison import compare_all
    from proctor.report.run import load_run
    from proctor.runs.folder import write_json

    runs = [load_run(path).require_rate() for path in paths]
    comparisons = compare_all(runs, criteria)
    _show(comparisons, gate=gate)
    if "json" in files:
        write_json(files["json"], {"comparisons": [_as_json(one) for one in comparisons]})
    print(f"page: {write_compare_page(runs, comparisons, files.get('html'), gate=gate)}")
    return EXIT_WORSE if gate and any(one.is_worse for one in comparisons) else 0


def _show(comparisons: Sequence[Comparison], *, gate: bool) -> None:
    """Print every comparison, with what the gate says of it where there is one."""
    from rich.console import Console

    from proctor.report.comparison_table import (
        comparison_lines,
        comparison_table,
        corrected_line,
        gate_text,
    )
    from proctor.report.tables import fitted, table_console

    console = table_console()
    errors = Console(stderr=True)
    for place, comparison in enumerate(comparisons):
        for warning in comparison.warnings:
            errors.print(
                strip_control_codes(f"warning: {warning}"),
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        if place:
            console.print()
        console.print(fitted(comparison_table(comparison), console.width))
        console.print()
        for line in comparison_lines(comparison):
            console.print(strip_control_codes(line), markup=False, highlight=False, soft_wrap=True)
        if gate:
            style = "bold red" if comparison.is_worse else "bold"
            console.print(f"gate: {gate_text(comparison)}", style=style, highlight=False)
    if len(comparisons) > 1:
        console.print()
        console.print(corrected_line(len(comparisons)), highlight=False, soft_wrap=True)


def _as_json(comparison: Comparison) -> dict[str, Any]:
    content = dataclasses.asdict(comparison)
    content |= {"a": str(comparison.a), "b": str(comparison.b)}
    return content | {"significantly_worse": comparison.is_worse}


def _criteria(flags: dict[str, str]) -> Criteria:
    from proctor.report.comparison import Criteria
    from proctor.stats.rates import LEAST_ALPHA

    unpaired = flags.get("unpaired", "false").lower()
    if unpaired not in ("true", "false"):
        raise UsageError(f"--unpaired is true or false, not {unpaired!r}")
    alpha, margin = flags.get("alpha", str(Criteria.alpha)), flags.get("fail-if-worse", "0")
    return Criteria(
        alpha=_number("alpha", alpha, LEAST_ALPHA, 0.5),
        margin=_number("fail-if-worse", margin, 0.0, 1.0),
        paired=unpaired == "false",
    )


def _number(name: str, text: str, least: float, below: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < below:
        raise UsageError(
            f"--{name} must be a number from {least:g} to below {below:g}, got {text!r}"
        )
    return value
