"""Warnings about a comparison of two runs, one line each."""

from __future__ import annotations

from proctor.report.compare.pairing import PairedSides, starts_of
from proctor.report.compare.protocol_differences import changed_protocol
from proctor.report.run.run import Run
from proctor.report.run.stopped import round_warnings
from proctor.report.run.warnings import journal_warnings
from proctor.runs.journal import EpisodeRecord
from proctor.types import EpisodeKey, Outcome


def comparison_warnings(a: Run, b: Run, *, paired: bool) -> list[str]:
    """Return warnings about damaged, unfinished or copied runs and about differing protocols."""
    lines = [line for run in (a, b) for line in run_warnings(run)]
    lines += _copies(a, b) + _overlap(a, b, paired=paired)
    return lines + changed_protocol(a.record.protocol, b.record.protocol, seeds=paired)


def pairing_warnings(a: Run, b: Run, sides: PairedSides) -> list[str]:
    """Return warnings about episodes that were left out or assumed."""
    lines = []
    if sides.different_starts:
        lines.append(
            f"{sides.different_starts} episodes of the same task, seed and init state are left "
            "out: they start differently in the two runs"
        )
    if sides.assumed:
        lines.append(
            f"{sides.assumed} pairs are assumed: an older version recorded one of the runs and did "
            "not measure its starts"
        )
    if sides.repeated_a or sides.repeated_b:
        lines.append(
            f"the comparison leaves out {sides.repeated_a} of {len(a.rows)} episodes of {a.path} "
            f"and {sides.repeated_b} of {len(b.rows)} of {b.path}: another episode of the same "
            "start is counted"
        )
    return lines


def run_warnings(run: Run) -> list[str]:
    """Return warnings about one run: damaged lines, early stop, missing episodes."""
    lines = [f"{run.path}: {warning}" for warning in run.warnings]
    lines += journal_warnings(run.path, run.damaged)
    if run.stopped is not None:
        lines.append(
            f"{run.path} stopped itself early ({run.stopped}): p-values and intervals here do "
            "not allow for that"
        )
        lines += [f"{run.path}: {line}" for line in round_warnings(run.rows, run.record.resolved)]
        return lines
    if run.history.looked or run.history.fixed is None:
        lines.append(
            f"{run.path}: {run.history.text}; p-values and intervals of differences suppose that "
            "it was fixed before the run"
        )
    planned = run.record.planned_episodes
    if planned is not None and len(run.rows) < planned:
        is_so = "is still running" if run.running else "is unfinished"
        how = "wait for its end" if run.running else "--resume completes it"
        lines.append(
            f"{run.path} {is_so} ({len(run.rows)} of {planned} episodes): episodes that end first "
            f"are mostly successes, so the difference cannot be trusted; {how}"
        )
    return lines


def _copies(a: Run, b: Run) -> list[str]:
    """Warn if episodes were copied between the folders: their times are the same."""
    in_a = {_identity(row) for row in a.rows if row.end_time}
    copied = sum(_identity(row) in in_a for row in b.rows)
    if not copied:
        return []
    return [
        f"{copied} of {len(b.rows)} episodes of B are copies of A's, played at the same moment: "
        "they are one result, and no evidence that the runs are equal"
    ]


def _identity(row: EpisodeRecord) -> tuple[EpisodeKey, float, float, Outcome, str | None]:
    return (row.key, row.start_time, row.end_time, row.outcome, row.digest)


def _overlap(a: Run, b: Run, *, paired: bool) -> list[str]:
    """Warn if the runs' starts overlap partly: paired runs should share them, unpaired ones not."""
    of_a, of_b = starts_of(a, b)
    shared = len(of_a & of_b)
    apart = paired and (of_a <= of_b or of_b <= of_a)
    if not shared or apart:
        return []
    so = "only those are compared" if paired else "they are no separate samples: p is too large"
    return [f"the runs share {shared} of {len(of_a)} starts in A and {len(of_b)} in B: {so}"]
