"""``proctor compare``: differences between runs, or between a result card and runs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.config.flags.command import CommandConfig, argument, run_command
from proctor.errors import UsageError, strip_control_codes
from proctor.number_text import points_text
from proctor.settings import setting

if TYPE_CHECKING:
    from proctor.report.claims.card_check import CardCheck
    from proctor.report.compare.comparison import Comparison

EXIT_WORSE = 3


@dataclass(kw_only=True)
class CompareCommand(CommandConfig):
    """Compare runs with a first one, episode by episode.

    Compares the runs B, C ... with the run A. Episodes of the same task, seed and initial state
    form pairs. A star marks a task that changed significantly. P-values are Holm-corrected over
    tasks, and over runs where there are several. Also writes a page with charts, all pairs and
    their videos side by side.

    If A is a result card (card.json of `proctor report RUN --card`), its claim is checked. A run
    contradicts it if the interval of the difference excludes zero. It agrees if the interval
    contains zero and lies within --margin of it, or if every episode ends as on the card. Otherwise
    it is undecided, and the number of episodes that would decide is printed.

    Exit code 3: --fail-if-worse is given and a run is worse, or a run contradicts the card. Exit
    code 4: a run leaves the card undecided.
    """

    runs: list[Path] = field(
        metadata=argument(
            "RUN",
            "run folders: first A, which may be a result card, then the runs to compare with it",
            least=2,
        )
    )
    fail_if_worse: float | None = setting(
        None,
        "exit with 3 if a run's success rate is lower than A's by more than this (0.02: 2 "
        "points), in a one-sided test at level alpha (default: never)",
        flag="fail-if-worse",
    )
    alpha: float = setting(
        0.05, "significance level of all tests; confidence intervals cover 1 - alpha"
    )
    unpaired: bool = setting(
        False,
        "compare tasks as independent samples, without pairing episodes (for runs with other "
        "seeds)",
    )
    accept: str | None = setting(
        None,
        "fields or sections of the protocol in which a run may differ from the card, as "
        "seed,versions,packages (default: no differences)",
        placeholder="NAMES",
    )
    margin: float | None = setting(
        None,
        "largest difference of success rates that still agrees with the card (0.1: 10 "
        "points) (default: 0.1)",
    )
    json: Path | None = setting(
        None, "write the results as JSON to FILE (default: no file)", placeholder="FILE"
    )
    html: Path | None = setting(
        None,
        "file of the page (default: compare.html in the folder of the second run)",
        placeholder="FILE",
    )

    def validate(self) -> None:
        """Refuse levels and margins out of range."""
        from proctor.stats.equivalence import DEFAULT_MARGIN, require_margin
        from proctor.stats.rates import LEAST_ALPHA

        _check_range("alpha", self.alpha, LEAST_ALPHA, 0.5)
        _check_range("fail-if-worse", self.fail_if_worse or 0.0, 0.0, 1.0)
        for path in self.runs[1:]:
            if path.is_file():
                raise UsageError(
                    f"{path} is a file, not a run folder; a result card comes first: proctor "
                    "compare CARD RUN",
                    code="argument.order",
                )
        require_margin(DEFAULT_MARGIN if self.margin is None else self.margin)
        self._check_card_flags()

    def _check_card_flags(self) -> None:
        """Refuse flags without a meaning for the kind of the first argument."""
        if not self.has_card:
            for name, value in (("accept", self.accept), ("margin", self.margin)):
                if value is not None:
                    raise UsageError(
                        f"--{name} needs a result card as the first argument", code="flag.unused"
                    )
            return
        unused = {
            "fail-if-worse": self.fail_if_worse is not None,
            "unpaired": self.unpaired,
            "html": self.html is not None,
        }
        for name, given in unused.items():
            if given:
                raise UsageError(
                    f"--{name} compares runs, and {self.runs[0]} is a result card; leave it out",
                    code="flag.unused",
                )

    @property
    def has_card(self) -> bool:
        """Whether the first argument is a result card: a file, not a run folder."""
        return self.runs[0].is_file()

    def run(self) -> int:
        """Compare the runs, print and write the results, and return the exit code."""
        self._check_outputs()
        if self.has_card:
            return self._check_card()
        from proctor.report.compare.comparison import Criteria, compare_all
        from proctor.report.compare.page import write_compare_page
        from proctor.report.run.run import load_run
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

    def _check_outputs(self) -> None:
        """Refuse files that would replace the card, data of a run, or one another."""
        from proctor.report.compare.page import COMPARE_FILE
        from proctor.runs.own_files import check_outputs

        outputs = {} if self.json is None else {"--json": self.json}
        if self.has_card:
            check_outputs(outputs, {"the result card": self.runs[0]})
            return
        outputs["--html"] = self.html or self.runs[1] / COMPARE_FILE
        check_outputs(outputs)

    def _check_card(self) -> int:
        """Check the claim of the card against every run, and return the exit code."""
        from proctor.report.claims.card_check import check_card
        from proctor.report.claims.card_file import read_card
        from proctor.report.run.run import load_run
        from proctor.runs.folder import write_json
        from proctor.stats.equivalence import DEFAULT_MARGIN, Verdict

        path, folders = self.runs[0], self.runs[1:]
        card = read_card(path)
        accept = [name.strip() for name in (self.accept or "").split(",") if name.strip()]
        level = {
            "alpha": self.alpha,
            "margin": DEFAULT_MARGIN if self.margin is None else self.margin,
        }
        checks = [
            check_card(card, path, load_run(folder), accept=accept, **level) for folder in folders
        ]
        for check in checks:
            _show_check(check, self.alpha)
        if self.json is not None:
            write_json(self.json, {"checks": [_check_json(check) for check in checks]})
        found = {check.verdict for check in checks}
        order = (Verdict.CONTRADICTS, Verdict.UNDECIDED, Verdict.AGREES)
        return next(verdict for verdict in order if verdict in found).exit_code


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_command(CompareCommand, "proctor compare", words)


def _show(comparisons: Sequence[Comparison], *, gate: bool) -> None:
    """Print every comparison; with ``gate`` also whether it passes --fail-if-worse."""
    from rich.console import Console

    from proctor.report.compare.table import (
        comparison_lines,
        comparison_table,
        correction_note,
        gate_verdict,
        robustness_change_lines,
        robustness_change_table,
    )
    from proctor.report.html.tables import fit_table, table_console

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
        if comparison.robustness is not None and comparison.robustness.cells:
            alpha = comparison.criteria.alpha
            table = robustness_change_table(comparison.robustness, alpha)
            console.print()
            console.print(fit_table(table, console.width))
            for line in robustness_change_lines(comparison.robustness):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
        if gate:
            style = "bold red" if comparison.is_worse else "bold"
            console.print(f"gate: {gate_verdict(comparison)}", style=style, highlight=False)
    if len(comparisons) > 1:
        console.print()
        console.print(correction_note(len(comparisons)), highlight=False, soft_wrap=True)


def _show_check(check: CardCheck, alpha: float) -> None:
    """Print what a run says about the card."""
    for warning in check.warnings:
        print(strip_control_codes(f"warning: {warning}"), file=sys.stderr)
    points = points_text(check.difference, check.interval)
    lines = [
        f"card {check.claimed}  {check.card}",
        f"run  {check.found}  {check.run}",
        *check.notes,
        f"run - card {points} points ({100 * (1 - alpha):g}% interval)",
        f"{check.verdict.value}: {check.reason}",
    ]
    for line in lines:
        print(strip_control_codes(line))


def _check_json(check: CardCheck) -> dict[str, Any]:
    content = dataclasses.asdict(check)
    return content | {
        "card": str(check.card),
        "run": str(check.run),
        "verdict": check.verdict.value,
    }


def _as_json(comparison: Comparison) -> dict[str, Any]:
    content = dataclasses.asdict(comparison)
    content |= {"a": str(comparison.a), "b": str(comparison.b)}
    return content | {"verdict": comparison.verdict, "significantly_worse": comparison.is_worse}


def _check_range(name: str, value: float, least: float, below: float) -> None:
    if not least <= value < below:
        raise UsageError(
            f"--{name} must be from {least:g} to below {below:g}, got {value:g}",
            code="flag.out-of-range",
        )
