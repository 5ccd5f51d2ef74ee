"""docs/reference/run_folder.md names every file and key that an evaluation writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from proctor.evaluation.run import Evaluation
from proctor.runs.journal import EpisodeRecord
from proctor.runs.labels import LabelRecord
from proctor.runs.records import PlannedTask, RunProgress
from proctor.runs.states import StateRecord
from proctor.runs.training import OnlineLogRow, TrainingLogRow, TrainingRecord

PAGE = Path(__file__).parents[3] / "docs/reference/run_folder.md"


def documented() -> set[str]:
    """Return every name in code marks; of ``config.given`` also its parts."""
    marked = re.findall(r"`([^`]+)`", PAGE.read_text(encoding="utf-8"))
    return {part for text in marked for part in (text, *text.split("."))}


def keys_of(content: dict[str, Any], *sections: str) -> set[str]:
    """Return the keys of an object and of its named sections."""
    return set(content).union(*(content[name] for name in sections))


def test_every_file_and_key_of_a_run_is_documented(run: Callable[..., Evaluation]) -> None:
    folder = run(policy__type="expert").path
    record = json.loads((folder / "run.json").read_text())
    info = json.loads((folder / "eval_info.json").read_text())
    (task,) = info["per_task"]
    found = {path.name for path in folder.iterdir()}
    found |= keys_of(record, "config", "protocol", "machine")
    found |= keys_of(info, "overall", "proctor") | keys_of(task, "metrics")
    found |= {field.name for kind in (EpisodeRecord, PlannedTask) for field in fields(kind)}
    assert found - documented() == set()


def test_every_key_of_sessions_and_trainings_is_documented() -> None:
    kinds = (RunProgress, StateRecord, LabelRecord, TrainingLogRow, OnlineLogRow, TrainingRecord)
    assert {field.name for kind in kinds for field in fields(kind)} - documented() == set()
