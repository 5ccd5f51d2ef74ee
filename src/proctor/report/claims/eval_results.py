"""A run's success rate in the Hub's format for evaluation results.

A model repository holds such results as YAML files in ``.eval_results/``. They name a dataset that
is registered as a benchmark, and a task of its ``eval.yaml``
("Evaluation Results" in the documentation of the Hub). The value is in percent.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.errors import UsageError, WriteFailed
from proctor.number_text import interval_text, percent_text
from proctor.report.claims.card import Card, card_of
from proctor.report.run.run import Run
from proctor.runs.folder import write_run_file
from proctor.stats.rates import Interval, error_bounds
from proctor.system.hub.repositories import HUB_ID
from proctor.version import __version__

FOLDER = ".eval_results"
_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")


@dataclass(frozen=True)
class HubTask:
    """A task of a benchmark dataset on the Hub."""

    dataset: str
    task_id: str

    @classmethod
    def parse(cls, text: str, flag: str = "--eval-results") -> HubTask:
        """Parse ``ORG/DATASET:TASK``."""
        dataset, _, task_id = text.partition(":")
        if not HUB_ID.fullmatch(dataset) or not _TASK.fullmatch(task_id):
            raise UsageError(
                f"{flag}={text}: expected ORG/DATASET:TASK, a benchmark dataset on the Hub "
                "and a task of its eval.yaml",
                code="flag.invalid-value",
            )
        return cls(dataset, task_id)


def eval_results_text(
    card: Card, task: HubTask, source: str | None = None, remark: str | None = None
) -> str:
    """Return the YAML of the card's success rate as a result of ``task``.

    ``remark`` is added to the notes.
    """
    import yaml

    if card.overall.rate is None or card.overall.interval is None:
        raise UsageError("the run has no success rate to publish", code="run.without-rate")
    entry: dict[str, Any] = {
        "dataset": {"id": task.dataset, "task_id": task.task_id},
        "value": round(100 * card.overall.rate, 2),
    }
    if card.started is not None:
        entry["date"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(card.started))
    if source is not None:
        entry["source"] = {"url": source, "name": "Proctor run"}
    entry["notes"] = "; ".join([_notes(card, card.overall.interval), *([remark] if remark else [])])
    return yaml.safe_dump([entry], sort_keys=False, allow_unicode=True, width=200)


def _notes(card: Card, interval: Interval) -> str:
    """Return what the rate counts, its interval, and how many episodes it lost."""
    perturbed, kind = card.clean_tasks[0].perturbed, ""
    if perturbed or len(card.clean_tasks) < len(card.tasks):
        kind = "perturbed " if perturbed else "clean "
    notes = [
        f"success rate in percent, {card.overall.episodes} {kind}episodes, 95% interval "
        f"{interval_text(interval)}"
    ]
    if card.overall.errors:
        n = card.overall.successes, card.overall.episodes, card.overall.errors
        low, high = map(percent_text, error_bounds(*n) or ())
        notes.append(f"{card.overall.errors} more ended with an error ({low} to {high} if counted)")
    return ", ".join([*notes, f"Proctor {__version__}", f"protocol {card.fingerprint}"])


def write_eval_results(run: Run, task: HubTask, source: str | None = None) -> Path:
    """Write ``RUN/.eval_results/TASK.yaml`` and return its path."""
    path = run.path / FOLDER / f"{task.task_id}.yaml"
    text = eval_results_text(card_of(run), task, source)
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise WriteFailed(path.parent, error) from error
    write_run_file(path, text)
    return path
