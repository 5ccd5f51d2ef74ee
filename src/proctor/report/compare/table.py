"""Tables and sentences of a comparison, for a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from proctor.errors import strip_control_codes
from proctor.number_text import interval_text, percent_text, points_text
from proctor.report.compare.comparison import SMALL_DIFFERENCE, UNDECIDED, Change, Comparison
from proctor.report.html.formatting import p_text
from proctor.report.robustness.comparison import DropChange, RobustnessComparison
from proctor.stats.rates import Interval

_ALWAYS_SHOWN = "--eval.latency_steps"
"""The policy difference that the terminal shows; the page shows all of them."""


def comparison_table(comparison: Comparison) -> Table:
    """Return the differences per task and overall; a star marks significant ones."""
    level = 100 * (1 - comparison.criteria.alpha)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task", overflow="fold")
    table.add_column("A", justify="right", no_wrap=True)
    table.add_column("B", justify="right", no_wrap=True)
    table.add_column(f"B - A [{level:g}% interval]", justify="right", no_wrap=True)
    table.add_column("p", justify="right", no_wrap=True)
    table.add_column("p (Holm)", justify="right", no_wrap=True)
    table.add_column("P(B > A)", justify="right", no_wrap=True)
    flagged = {task.name for sign in (1, -1) for task in comparison.changed(sign)}
    for task in comparison.tasks:
        _add(table, task, "*" if task.name in flagged else "", task.p_holm)
    if len(comparison.tasks) > 1:
        table.add_section()
        overall = comparison.overall
        _add(table, overall, "", overall.p_holm if comparison.n_runs > 1 else None)
    return table


def _add(table: Table, change: Change, mark: str, p_holm: float | None) -> None:
    chance = change.probability_b_better
    table.add_row(
        Text(strip_control_codes(change.name) + mark),  # as text, never as markup
        f"{change.successes_a}/{change.n_a}",
        f"{change.successes_b}/{change.n_b}",
        points_text(change.difference, change.interval),
        p_text(change.p_value),
        "" if p_holm is None else p_text(p_holm),
        "n/a" if chance is None else f"{chance:.3f}",
        style="bold" if mark or change.name == "all" else None,
    )


def robustness_change_table(found: RobustnessComparison, alpha: float) -> Table:
    """Return the drops of A and B by cell; a star marks a significant difference."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("perturbation", overflow="fold")
    interval = f"drop B - drop A [{100 * (1 - alpha):g}% interval]"
    for head in ("drop A", "drop B", interval, "p", "p (Holm)", "pairs"):
        table.add_column(head, justify="right", no_wrap=True)

    def add(change: DropChange, name: str, *, total: bool) -> None:
        flagged = not total and change.p_holm is not None and change.p_holm <= alpha
        table.add_row(
            Text(strip_control_codes(name) + "*" * flagged),
            *("n/a" if d is None else f"{100 * d:+.1f}" for d in (change.drop_a, change.drop_b)),
            points_text(change.difference, change.interval),
            p_text(change.p_value),
            "" if change.dimension is None else p_text(change.p_holm),
            str(change.pairs),
            style="bold" if total or flagged else None,
        )

    for of_dimension in found.dimensions:
        cells = [cell for cell in found.cells if cell.dimension == of_dimension.dimension]
        for cell in cells:
            add(cell, cell.name, total=False)
        if len(cells) > 1:
            add(of_dimension, f"{of_dimension.name}, all", total=True)
    if len(found.dimensions) > 1:
        add(found.all, "all", total=True)
    return table


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return the sentences below the table."""
    overall, criteria = comparison.overall, comparison.criteria
    lines = [
        f"A {_rate_text(overall, overall.rate_a, overall.interval_a)}  {comparison.a}",
        f"B {_rate_text(overall, overall.rate_b, overall.interval_b)}  {comparison.b}",
        f"B - A {points_text(overall.difference, overall.interval)} points, "
        f"{overall_p_text(comparison)}",
        verdict_text(comparison),
    ]
    if not comparison.policies:
        lines.append("the policies of A and B are defined alike")
    lines += [line for line in comparison.policies if line.startswith(_ALWAYS_SHOWN)]
    runs = "" if comparison.n_runs == 1 else f" over the tasks of all {comparison.n_runs} runs"
    for word, sign in (("better", 1), ("worse", -1)):
        names = ", ".join(task.name for task in comparison.changed(sign))
        if names:
            lines.append(f"significantly {word} (Holm{runs}, alpha {criteria.alpha:g}): {names}")
    if comparison.detectable is not None:
        pairs = "pairs" if criteria.paired else "episodes each"
        lines.append(
            f"with {overall.n_a} {pairs}, a true difference of {100 * comparison.detectable:.1f} "
            "points is found 80% of the time"
        )
    if overall.diverged_a or overall.diverged_b:
        lines.append(
            f"diverged, counted as failed: {overall.diverged_a} in A, {overall.diverged_b} in B"
        )
    if overall.errors_a or overall.errors_b:
        lines.append(f"errors, left out: {overall.errors_a} in A, {overall.errors_b} in B")
    if comparison.left_out_a or comparison.left_out_b:
        lines.append(
            f"episodes without a partner: {comparison.left_out_a} in A, "
            f"{comparison.left_out_b} in B"
        )
    return lines


def verdict_text(comparison: Comparison) -> str:
    """Return one sentence on whether B differs from A."""
    overall = comparison.overall
    points = points_text(overall.difference, overall.interval)
    size, _, interval = points.partition(" ")
    if comparison.verdict != UNDECIDED:
        p = p_equals(overall.p_holm)
        return f"B is {comparison.verdict} by {size[1:]} points, statistically significant ({p})"
    small = f"{100 * SMALL_DIFFERENCE:g} points"
    if not comparison.more_needed:
        return (
            f"Undecided: the difference lies in {interval}; so many episodes usually show {small}"
        )
    return (
        f"Undecided. Too few episodes to decide: the difference lies in {interval}; "
        f"about {comparison.more_needed} more starts of each run would show {small}"
    )


def _rate_text(overall: Change, rate: float | None, interval: Interval | None) -> str:
    assert rate is not None, "runs without a common result are never compared"
    assert interval is not None
    text = f"{percent_text(rate)} {interval_text(interval)} n={overall.n_a}"
    if overall.starts == overall.n_a:
        return text
    return f"{text} ({overall.starts} start{'s' * (overall.starts != 1)})"


def robustness_change_lines(found: RobustnessComparison) -> list[str]:
    """Return the sentences below the table of drops."""
    lines = [
        "drop: clean rate minus perturbed rate, in points; positive difference: the perturbation "
        "costs B more; Holm over the cells of all runs and, for totals, over the dimensions; each "
        "interval is of its row alone, as p",
    ]
    if found.left_out_a or found.left_out_b:
        a, b = found.left_out_a, found.left_out_b
        lines.append(f"pairs that the other run does not have: {a} in A, {b} in B")
    return lines


def correction_note(n_runs: int) -> str:
    """Return the note on which values are corrected for several comparisons."""
    return (
        f"{n_runs} runs are compared with A: their p-values (Holm) and intervals over all tasks "
        "are corrected for that; P(B > A) is of its run alone, and a task's interval of its row"
    )


def overall_p_text(comparison: Comparison) -> str:
    """Return the overall p-value as text, Holm-corrected if there are several runs."""
    overall = comparison.overall
    if comparison.n_runs == 1:
        return p_equals(overall.p_value)
    alone = f"{p_equals(overall.p_value)} alone"
    return f"{p_equals(overall.p_holm)} (Holm over {comparison.n_runs} runs; {alone})"


def gate_verdict(comparison: Comparison) -> str:
    """Return the verdict of --fail-if-worse."""
    shown = "worse" if comparison.is_worse else "not shown to be worse"
    points = f"{100 * comparison.criteria.margin:g} points"
    over = "" if comparison.n_runs == 1 else f", Holm over {comparison.n_runs} runs"
    return f"{shown} by more than {points} ({p_equals(comparison.p_worse_holm)}{over})"


def p_equals(p: float | None) -> str:
    """Return ``p=0.012`` or ``p<0.001``."""
    text = p_text(p)
    return f"p{text}" if text.startswith("<") else f"p={text}"
