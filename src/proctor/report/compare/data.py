"""JSON values of the comparison page. Pure functions of runs and their comparisons."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from proctor.report.compare.comparison import Change, Comparison
from proctor.report.compare.pairing import paired_episodes
from proctor.report.compare.table import (
    correction_note,
    gate_verdict,
    overall_p_text,
    verdict_text,
)
from proctor.report.html.formatting import p_text
from proctor.report.robustness.comparison import DropChange
from proctor.report.run.latency_curve import latency_curves
from proctor.report.run.page import REPORT_FILE
from proctor.report.run.run import Run
from proctor.report.run.step_curve import checkpoint_of, step_curves
from proctor.runs.journal import EpisodeRecord
from proctor.stats.rates import Interval
from proctor.types import EpisodeKey, Outcome

_ONLY_A, _ONLY_B, _NEITHER, _BOTH, _ERROR = range(5)
"""Which run solved an episode, in the order of display."""
_KINDS = {
    (True, False): _ONLY_A,
    (False, True): _ONLY_B,
    (False, False): _NEITHER,
    (True, True): _BOTH,
}

Pair = tuple[EpisodeRecord, EpisodeRecord]


def compare_data(
    runs: Sequence[Run], comparisons: Sequence[Comparison], start: Path, *, gate: bool
) -> dict[str, Any]:
    """Return the values of the page; links are relative to ``start``, the folder of the page.

    The first run is the reference. ``gate``: include the verdict of --fail-if-worse.
    """
    reference, *others = runs
    sections = [
        _section(reference, other, comparison, start)
        | {"gate": gate_verdict(comparison) if gate else None}
        for other, comparison in zip(others, comparisons, strict=True)
    ]
    criteria = comparisons[0].criteria
    named = _name(others[0].path) if len(others) == 1 else f"{len(others)} runs"
    return {
        "title": f"{named} against {_name(reference.path)}",
        "a": _run(reference, start),
        "alpha": criteria.alpha,
        "level": f"{100 * (1 - criteria.alpha):g}%",
        "paired": criteria.paired,
        "corrected": correction_note(len(others)) if len(others) > 1 else None,
        "overview": _overview(runs, comparisons, start) if len(others) > 1 else None,
        "steps": step_curves(runs),
        "curves": latency_curves(runs),
        "comparisons": sections,
    }


def _overview(
    runs: Sequence[Run], comparisons: Sequence[Comparison], start: Path
) -> list[dict[str, Any]]:
    """Return a row for every run: its rate on all its episodes, and its difference from the first.

    The difference is of the compared episodes only.
    """
    rows = []
    for run, comparison in zip(runs, [None, *comparisons], strict=True):
        added, checkpoint = run.tally, checkpoint_of(run)
        rows.append(
            _run(run, start)
            | {
                "step": None if checkpoint is None else checkpoint.step,
                "rate": added.rate,
                "interval": _ends(added.interval),
                "counts": [added.successes, added.episodes],
                "errors": added.errors,
                "change": None if comparison is None else _change(comparison.overall),
                "differs": comparison is not None and comparison.differs,
            }
        )
    return rows


def link(path: Path, start: Path) -> str:
    """Return the URL of a file relative to the folder ``start``, with odd characters quoted."""
    return quote(os.fsencode(Path(os.path.relpath(path, start)).as_posix()))


def _section(a: Run, b: Run, comparison: Comparison, start: Path) -> dict[str, Any]:
    overall = comparison.overall
    flagged = {task.name for sign in (1, -1) for task in comparison.changed(sign)}
    return {
        "b": _run(b, start),
        "verdict": verdict_text(comparison),
        "p_equals": overall_p_text(comparison),
        "differs": comparison.differs,
        "overall": _change(overall),
        "tasks": [_change(task) | {"flagged": task.name in flagged} for task in comparison.tasks],
        "detectable": comparison.detectable,
        "left_out": [comparison.left_out_a, comparison.left_out_b],
        "warnings": comparison.warnings,
        "policies": comparison.policies,
        "robustness": _robustness(comparison),
        "pairs": _pairs(a, b, comparison, start) if comparison.criteria.paired else None,
    }


def _robustness(comparison: Comparison) -> dict[str, Any] | None:
    """Return the drops of both runs by cell, dimension and in all; None without any."""
    found = comparison.robustness
    if found is None or not found.cells:
        return None

    def change(one: DropChange) -> dict[str, Any]:
        return {
            "dimension": one.dimension,
            "level": one.level,
            "name": one.name,
            "drop_a": one.drop_a,
            "drop_b": one.drop_b,
            "difference": one.difference,
            "interval": _ends(one.interval),
            "p_text": p_text(one.p_value),
            "p_holm_text": p_text(one.p_holm),
            "flagged": one.p_holm is not None and one.p_holm <= comparison.criteria.alpha,
            "n": one.pairs,
        }

    return {
        "cells": [change(cell) for cell in found.cells],
        "dimensions": [change(total) for total in found.dimensions],
        "all": change(found.all),
        "left_out": [found.left_out_a, found.left_out_b],
    }


def _run(run: Run, start: Path) -> dict[str, Any]:
    report = run.path / REPORT_FILE
    return {
        "path": str(run.path),
        "name": _name(run.path),
        "fingerprint": run.record.fingerprint,
        "report": link(report, start) if report.is_file() else None,
    }


def _name(path: Path) -> str:
    return path.resolve().name or str(path)


def _change(change: Change) -> dict[str, Any]:
    return {
        "name": change.name,
        "a": [change.successes_a, change.n_a],
        "b": [change.successes_b, change.n_b],
        "rates": [change.rate_a, change.rate_b],
        "rate_intervals": [_ends(change.interval_a), _ends(change.interval_b)],
        "errors": [change.errors_a, change.errors_b],
        "diverged": [change.diverged_a, change.diverged_b],
        "difference": change.difference,
        "interval": _ends(change.interval),
        "p": change.p_value,
        "p_text": p_text(change.p_value),
        "p_holm": change.p_holm,
        "p_holm_text": p_text(change.p_holm),
        "better": change.probability_b_better,
    }


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _pairs(a: Run, b: Run, comparison: Comparison, start: Path) -> dict[str, list[Any]]:
    """Return the pairs as columns; pairs that only one run solved come first."""
    task_index = {task.name: number for number, task in enumerate(comparison.tasks)}
    pairs: list[Pair] = []
    task_of: dict[EpisodeKey, int] = {}
    for task, (of_a, of_b) in paired_episodes(a, b).tasks.items():
        pairs += zip(of_a, of_b, strict=True)
        task_of |= {row.key: task_index[task] for row in of_b}
    pairs.sort(key=_kind)
    columns: dict[str, Callable[[Pair], Any]] = {
        "task": lambda pair: task_of[pair[1].key],
        "seed": lambda pair: pair[0].seed,
        "init_state": lambda pair: pair[0].init_state,
        "kind": _kind,
        "outcome_a": lambda pair: pair[0].outcome.value,
        "outcome_b": lambda pair: pair[1].outcome.value,
        "steps_a": lambda pair: pair[0].steps,
        "steps_b": lambda pair: pair[1].steps,
        "video_a": lambda pair: _video(a, pair[0], start),
        "video_b": lambda pair: _video(b, pair[1], start),
    }
    return {name: [value(pair) for pair in pairs] for name, value in columns.items()}


def _kind(pair: Pair) -> int:
    a, b = pair[0].outcome, pair[1].outcome
    if not (a.counts and b.counts):
        return _ERROR
    return _KINDS[a is Outcome.SUCCESS, b is Outcome.SUCCESS]


def _video(run: Run, row: EpisodeRecord, start: Path) -> str | None:
    path = run.path / row.video
    return link(path, start) if path.is_file() else None
