"""Robustness as a table for a terminal, as Markdown, and as values of ``eval_info.json``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from proctor.errors import strip_control_codes
from proctor.number_text import percent_text, points_text
from proctor.report.html.formatting import p_text
from proctor.report.html.tables import fit_table
from proctor.report.robustness.drops import Drop, Robustness
from proctor.report.robustness.sensitivity import Effect, Sensitivity
from proctor.report.run.summary import score_column

HEADS = (
    "perturbation",
    "clean",
    "perturbed",
    "drop [95% interval]",
    "pairs",
    "p (Holm)",
    "odds of failure",
)
ALPHA = 0.05
_MAX_LISTED = 10_000
"""Missing pairs that ``eval_info.json`` lists one by one."""


def print_robustness(found: Robustness, sensitivity: Sensitivity | None, console: Console) -> None:
    """Print the table, folded to the console's width, and the sentences below it."""
    table = robustness_table(found, sensitivity)
    console.print(fit_table(table, console.width), highlight=False)
    for line in robustness_lines(found):
        console.print(strip_control_codes(line), highlight=False, soft_wrap=True, markup=False)


def robustness_table(found: Robustness, sensitivity: Sensitivity | None) -> Table:
    """Return drops by dimension and level, totals per dimension, and all."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(HEADS[0], overflow="fold")
    for head in HEADS[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    for cells, is_total in table_rows(found, sensitivity):
        name, *rest = (strip_control_codes(cell) for cell in cells)
        table.add_row(Text(name), *rest, style="bold" if is_total else None)
    return table


def table_rows(
    found: Robustness, sensitivity: Sensitivity | None
) -> Iterator[tuple[list[str], bool]]:
    """Yield the cells of every row of the table, and whether the row is a total."""
    effects = {} if sensitivity is None else _by_cell(sensitivity.cells)
    of_dimension = {} if sensitivity is None else _by_cell(sensitivity.dimensions)
    for total in found.dimensions:
        cells = found.of(total.dimension or "")
        for cell in cells:
            yield _row(cell, cell.name, effects.get((cell.dimension, cell.level))), False
        if len(cells) > 1:
            name, effect = f"{total.name}, all", of_dimension.get((total.dimension, None))
            yield _row(total, name, effect), True
    if len(found.dimensions) > 1:
        yield _row(found.all, "all", None), True


def _by_cell(effects: list[Effect]) -> dict[tuple[str | None, int | None], Effect]:
    return {(effect.dimension, effect.level): effect for effect in effects}


def _row(drop: Drop, name: str, effect: Effect | None) -> list[str]:
    star = "*" if drop.p_holm is not None and drop.p_holm <= ALPHA else ""
    return [
        name + star,
        percent_text(drop.clean),
        percent_text(drop.perturbed),
        points_text(drop.drop, drop.interval),
        str(drop.counts.n) + (f" (+{drop.missing} missing)" if drop.missing else ""),
        "" if drop.p_value is None else p_text(drop.p_holm),
        "" if effect is None else odds_text(effect),
    ]


def robustness_lines(found: Robustness) -> list[str]:
    """Return the sentences below the table."""
    lines = [
        "drop: clean rate minus perturbed rate, in points, over pairs of the same seed and init "
        "state; * statistically significant (McNemar, Holm over the cells, alpha 0.05)",
        "odds of failure: times those of the clean episodes of the same task (Firth's logistic "
        "regression, profile intervals); each interval is of its row alone",
    ]
    return lines if found.missing_text is None else [*lines, found.missing_text]


def odds_text(effect: Effect) -> str:
    """Return the odds ratio and its interval: ``x3.2 [1.4, 8.9]``."""
    low, high = effect.interval
    return f"x{_ratio(effect.log_odds_ratio)} [{_ratio(low)}, {_ratio(high)}]"


def _ratio(log: float) -> str:
    if log > math.log(9999.5):
        return ">9999"
    value = math.exp(log)
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def robustness_json(found: Robustness, sensitivity: Sensitivity | None) -> dict[str, Any]:
    """Return the values of ``eval_info.json``; rates and drops in per cent."""
    return {
        "cells": [drop_json(cell) for cell in found.cells],
        "dimensions": [drop_json(total) for total in found.dimensions],
        "all": drop_json(found.all),
        "missing_pairs": [
            {
                "dimension": one.cell[0],
                "level": one.cell[1],
                "suite": one.perturbed.suite,
                "task_id": one.perturbed.task_id,
                "episode_index": one.perturbed.episode_index,
                "seed": one.perturbed.seed,
                "init_state": one.perturbed.init_state,
                "reason": one.reason,
            }
            for one in found.missing[:_MAX_LISTED]
        ],
        "sensitivity": None
        if sensitivity is None
        else {
            "dimensions": [effect_json(effect) for effect in sensitivity.dimensions],
            "cells": [effect_json(effect) for effect in sensitivity.cells],
        },
    }


def drop_json(drop: Drop) -> dict[str, Any]:
    """Return a drop as JSON values."""
    return {
        "dimension": drop.dimension,
        "level": drop.level,
        "pc_clean": _of_100(drop.clean),
        "pc_perturbed": _of_100(drop.perturbed),
        "pc_drop": _of_100(drop.drop),
        "pc_drop_interval95": None
        if drop.interval is None
        else [100 * end for end in drop.interval],
        "p": drop.p_value,
        "p_holm": drop.p_holm,
        "n_pairs": drop.counts.n,
        "n_tasks": drop.tasks,
        "n_starts": drop.units.distinct,
        "n_only_clean": drop.counts.only_b,
        "n_only_perturbed": drop.counts.only_a,
        "n_missing": drop.missing,
        "n_unfinished": drop.unfinished,
        "scores": {
            score_column(score.name): {
                "clean": score.clean,
                "perturbed": score.perturbed,
                "change": score.change,
                "change_interval95": None if score.interval is None else list(score.interval),
                "n_pairs": score.pairs,
            }
            for score in drop.scores
        },
    }


def effect_json(effect: Effect) -> dict[str, Any]:
    """Return an effect as JSON values."""
    return {
        "dimension": effect.dimension,
        "level": effect.level,
        "log_odds_ratio": effect.log_odds_ratio,
        "log_odds_ratio_interval95": list(effect.interval),
        "p": effect.p_value,
        "p_holm": effect.p_holm,
    }


def _of_100(rate: float | None) -> float | None:
    return None if rate is None else 100 * rate
