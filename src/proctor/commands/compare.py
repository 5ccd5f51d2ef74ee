"""``proctor compare``: differences between runs, and whether they exceed chance."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.config.command import CommandConfig, argument, run_command
from proctor.errors import UsageError, strip_control_codes

if TYPE_CHECKING:
    from proctor.report.comparison import Comparison

EXIT_WORSE = 3


@dataclass(kw_only=True)
class CompareCommand(CommandConfig):
    """Compare runs with a first one, episode by episode.

    Compares the runs B, C ... with the run A. Episodes of the same task, seed and initial state
    form pairs. A star marks a task that changed beyond chance. P-values are Holm-corrected over
    tasks, and over runs where there are several. Also writes a page with charts, all pairs and
    their videos side by side.

    Exit code 3: --fail-if-worse is given and a run is worse.
    """

    runs: list[Path] = field(
        metadata=argument("RUN", "run folders: first A, then the runs to compare with it", least=2)
    )
    fail_if_worse: float | None = field(
        default=None,
        metadata={
            "flag": "fail-if-worse",
            "help": "exit with 3 when a run is worse than A by more than this difference of "
            "success rates (0.02: two points), by a one-sided test at level alpha (default: "
            "never)",
        },
    )
    alpha: float = field(
        default=0.05,
        metadata={"help": "significance level of every test; the intervals cover 1 - alpha"},
    )
    unpaired: bool = field(
        default=False,
        metadata={
            "help": "treat the runs as independent samples of each task, as when seeds differ"
        },
    )
    json: Path | None = field(
        default=None,
        metadata={"help": "write the numbers to this file", "placeholder": "FILE"},
    )
    html: Path | None = field(
        default=None,
        metadata={
            "help": "file of the page (default: compare.html in the folder of the second run)",
            "placeholder": "FILE",
        },
    )

    def validate(self) -> None:
        """Refuse levels and margins out of range.

        Raises:
            UsageError: naming the flag.
        """
        from proctor.stats.rates import LEAST_ALPHA

        _check_range("alpha", self.alpha, LEAST_ALPHA, 0.5)
        _check_range("fail-if-worse", self.fail_if_worse or 0.0, 0.0, 1.0)

    def run(self) -> int:
        """Compare the runs, print and write the results, and return the exit code."""
        from proctor.report.compare_page import write_compare_page
        from proctor.report.comparison import Criteria, compare_all
        from proctor.report.run import load_run
        from proctor.runs.folder import write_json

        gate = self.fail_if_worse is not None
        criteria = Criteria(self.alpha, self.fail_if_worse or 0.0, paired=not self.unpaired)
        runs = [load_run(path).require_rate() for path in self.runs]
        comparisons = compare_all(runs, criteria)
        _show(comparisons, gate=gate)
        if self.json is not None:
            write_json(self.json, {"comparisons": [_as_json(one) for one in comparisons]})
        print(f"page: {write_compare_page(runs, comparisons, self.html, gate=gate)}")
        return EXIT_WORSE if gate and any(one.is_worse for one in comparisons) else 0


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_command(CompareCommand, "proctor compare", words)


def _show(comparisons: Sequence[Comparison], *, gate: bool) -> None:
    """Print every comparison; with ``gate`` also whether it passes --fail-if-worse."""
    from rich.console import Console

    from proctor.report.comparison_table import (
        comparison_lines,
        comparison_table,
        correction_note,
        gate_verdict,
    )
    from proctor.report.tables import fit_table, table_console

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
        console.print(fit_table(comparison_table(comparison), console.width))
        console.print()
        for line in comparison_lines(comparison):
            console.print(strip_control_codes(line), markup=False, highlight=False, soft_wrap=True)
        if gate:
            style = "bold red" if comparison.is_worse else "bold"
            console.print(f"gate: {gate_verdict(comparison)}", style=style, highlight=False)
    if len(comparisons) > 1:
        console.print()
        console.print(correction_note(len(comparisons)), highlight=False, soft_wrap=True)


def _as_json(comparison: Comparison) -> dict[str, Any]:
    content = dataclasses.asdict(comparison)
    content |= {"a": str(comparison.a), "b": str(comparison.b)}
    return content | {"significantly_worse": comparison.is_worse}


def _check_range(name: str, value: float, least: float, below: float) -> None:
    if not least <= value < below:
        raise UsageError(
            f"--{name} must be from {least:g} to below {below:g}, got {value:g}",
            code="flag.out-of-range",
        )
