"""Notes on policies that were selected by the very episodes that evaluate them. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from proctor.report.run.summary import clean_rows, tally
from proctor.runs.journal import EpisodeRecord, read_journal
from proctor.runs.training import EVALUATIONS, RECORD_FILE, EvaluationLogRow, read_training_log
from proctor.stats.independent_units import named_start
from proctor.types import EpisodeSpec

_FEWEST_RUNS = 3
"""Smallest number of runs whose best one gets a note; two are a comparison."""


def checkpoint_selection_note(policy: Path, plan: Sequence[EpisodeSpec]) -> str | None:
    """Return a note if some of these episodes made ``policy`` its training's best checkpoint."""
    checkpoint = policy.resolve().parent
    training = checkpoint.parent.parent
    if not checkpoint.name.isdecimal() or not (training / RECORD_FILE).is_file():
        return None
    rows = [row for row in read_training_log(training) if isinstance(row, EvaluationLogRow)]
    scores = {row.step: row.score for row in rows if row.score is not None}
    own = scores.get(int(checkpoint.name))
    if len(scores) < 2 or own is None or own < max(scores.values()):
        return None
    earlier = read_journal(training / EVALUATIONS / checkpoint.name).rows
    known = {named_start(row) for row in earlier}
    again = [spec for spec in plan if named_start(spec) in known]
    if not again:
        return None
    seed = 1 + max([spec.seed for spec in plan] + [row.seed for row in earlier])
    return (
        f"{len(again)} of {len(plan)} episodes selected this checkpoint as the best of "
        f"{len(scores)}, so its rate on them is biased upwards; {_others(again, seed)}"
    )


def best_run_note(names: Sequence[str], runs: Sequence[Sequence[EpisodeRecord]]) -> str | None:
    """Return a note on the best of several runs; None if there are fewer than three."""
    if len(runs) < _FEWEST_RUNS:
        return None
    rates = [tally(clean_rows(rows)).rate for rows in runs]
    measured = [rate for rate in rates if rate is not None]
    if len(measured) < _FEWEST_RUNS:
        return None
    best = rates.index(max(measured))
    seed = 1 + max(row.seed for rows in runs for row in rows)
    return (
        f"{names[best]} is the best of {len(measured)} on these episodes, so its rate is biased "
        f"upwards; {_others(runs[best], seed)}"
    )


def _others(episodes: Sequence[EpisodeSpec] | Sequence[EpisodeRecord], seed: int) -> str:
    if any(episode.init_state is not None for episode in episodes):
        return "every --seed has these starts, so compare it with care"
    return f"evaluate it on others: --seed={seed}"
