"""What is to be known of a run that a rule may stop: why it did, whether its rounds are whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proctor.machine.files import read_plain
from proctor.runs.folder import EVAL_INFO_FILE
from proctor.runs.journal import EpisodeRow
from proctor.stats.anytime import NOT_WATCHED, watched

FIXED = "Wilson"
ANYTIME = "anytime-valid: it holds although the run could stop itself"


def why_stopped(folder: Path, resolved: Mapping[str, Any]) -> str | None:
    """Return why a run was stopped before all its episodes had been run.

    What an earlier session wrote is no longer true of a run that goes on without a rule.
    """
    if watched(resolved) == NOT_WATCHED:
        return None
    try:
        ours = json.loads(read_plain(folder / EVAL_INFO_FILE))["proctor"]
        return None if ours["complete"] or ours["stopped"] is None else str(ours["stopped"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # the run goes on, was killed or is older than stop rules


def kind_of_interval(resolved: Mapping[str, Any]) -> str:
    """Say which 95% interval the rates of a run with these settings have."""
    return FIXED if watched(resolved) == NOT_WATCHED else ANYTIME


def round_warnings(rows: Sequence[EpisodeRow], resolved: Mapping[str, Any]) -> list[str]:
    """Say that rounds are not whole, where a rule that sees whole rounds may stop the run."""
    if watched(resolved) == NOT_WATCHED or not rows:
        return []
    tasks = {(row.suite, row.task_id) for row in rows}
    ended: dict[int, int] = {}
    for row in rows:
        ended[row.episode_index] = ended.get(row.episode_index, 0) + 1
    missing = sum(len(tasks) - n for n in ended.values())
    if not missing:
        return []
    return [
        f"{missing} episode{'s' * (missing != 1)} of rounds that have begun had not ended: what is "
        "there of those rounds ended quickly, as successes do, so the rate is not to be trusted; "
        "--resume completes them"
    ]
