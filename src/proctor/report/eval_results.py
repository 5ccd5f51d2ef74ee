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
from proctor.number_text import interval_text
from proctor.report.card import Card, card_of
from proctor.report.run import Run
from proctor.runs.folder import write_run_file
from proctor.system.hub import HUB_ID
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
        """Parse ``ORG/DATASET:TASK``.

        Raises:
            UsageError: it is not of that form.
        """
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

    Raises:
        UsageError: the card has no success rate.
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
    notes = (
        f"success rate in percent, {card.overall.episodes} episodes, 95% interval "
        f"{interval_text(card.overall.interval)}, Proctor {__version__}, "
        f"protocol {card.fingerprint}"
    )
    entry["notes"] = notes if remark is None else f"{notes}; {remark}"
    return yaml.safe_dump([entry], sort_keys=False, allow_unicode=True, width=200)


def write_eval_results(run: Run, task: HubTask, source: str | None = None) -> Path:
    """Write ``RUN/.eval_results/TASK.yaml`` and return its path.

    Raises:
        UsageError: the run is empty or incomplete, or has no success rate of one kind of tasks.
        WriteFailed: the file cannot be written.
    """
    if len({task.perturbation is None for task in run.tasks}) > 1:
        raise UsageError(
            "the run has clean and perturbed tasks, and its success rate counts both; publish a "
            "run of one kind (without --perturb and --env.paired)",
            code="run.without-rate",
        )
    path = run.path / FOLDER / f"{task.task_id}.yaml"
    text = eval_results_text(card_of(run), task, source)
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise WriteFailed(path.parent, error) from error
    write_run_file(path, text)
    return path
