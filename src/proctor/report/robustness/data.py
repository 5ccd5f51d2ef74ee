"""Values of the report page about robustness: drops, sensitivity and pairs to watch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from proctor.report.html.formatting import p_text, rounded
from proctor.report.robustness.drops import Drop, EpisodePair, Robustness
from proctor.report.robustness.sensitivity import Effect
from proctor.report.robustness.table import ALPHA
from proctor.report.run.run import Run
from proctor.stats.rates import Interval

_MAX_PAIRS = 2000
"""Pairs on a page, so that it stays small."""


def robustness_data(run: Run) -> dict[str, Any] | None:
    """Return the values of the page's section; None if no task is perturbed."""
    found = run.robustness
    if found is None:
        return None
    position = {row.key: place for place, row in enumerate(run.rows)}
    sensitivity = run.sensitivity
    labels = {score.name: score.label for score in run.scores}
    cell_of = {(cell.dimension, cell.level): number for number, cell in enumerate(found.cells)}
    return {
        "cells": [_drop(cell, labels) for cell in found.cells],
        "dimensions": [_drop(total, labels) for total in found.dimensions],
        "all": _drop(found.all, labels),
        "missing": found.missing_text,
        "effects": []
        if sensitivity is None
        else [_effect(effect) for effect in (*sensitivity.dimensions, *sensitivity.cells)],
        "lost": [
            [position[pair.clean.key], position[pair.perturbed.key], cell_of[pair.cell]]
            for pair in _to_watch(found)[:_MAX_PAIRS]
        ],
    }


def _drop(drop: Drop, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "dimension": drop.dimension,
        "level": drop.level,
        "name": drop.name,
        "clean": rounded(drop.clean, 6),
        "perturbed": rounded(drop.perturbed, 6),
        "drop": rounded(drop.drop, 6),
        "interval": _ends(drop.interval),
        "n": drop.counts.n,
        "starts": drop.units.distinct,
        "lost": drop.counts.only_b,
        "gained": drop.counts.only_a,
        "missing": drop.missing,
        "unfinished": drop.unfinished,
        "scores": [
            {
                "label": labels[score.name],
                "clean": rounded(score.clean, 4),
                "perturbed": rounded(score.perturbed, 4),
                "change": rounded(score.change, 4),
                "interval": _ends(score.interval),
            }
            for score in drop.scores
            if score.name in labels
        ],
        "p": p_text(drop.p_holm) if drop.p_value is not None else None,
        "flagged": drop.p_holm is not None and drop.p_holm <= ALPHA,
    }


def _effect(effect: Effect) -> dict[str, Any]:
    return {
        "dimension": effect.dimension,
        "level": effect.level,
        "log_odds": rounded(effect.log_odds_ratio, 4),
        "interval": _ends(effect.interval),
        "p": p_text(effect.p_holm),
        "flagged": effect.p_holm <= ALPHA,
    }


def _ends(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [rounded(end, 6) for end in interval]


def _to_watch(found: Robustness) -> Sequence[EpisodePair]:
    """Return the pairs that only the clean episode solved: one of each cell, then the next ones.

    The cell with the largest drop comes first.
    """
    of_cell = defaultdict(list)
    for pair in found.pairs:
        if pair.lost:
            of_cell[pair.cell].append(pair)
    drops = {(cell.dimension, cell.level): cell.drop or 0.0 for cell in found.cells}
    ordered = [
        (turn, -drops[cell], number, pair)
        for number, (cell, pairs) in enumerate(of_cell.items())
        for turn, pair in enumerate(pairs)
    ]
    ordered.sort(key=lambda one: one[:3])
    return [pair for *_, pair in ordered]
