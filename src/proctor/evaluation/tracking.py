"""Reports a run to Weights & Biases, from its first episode to its last video."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proctor.callbacks.base import Callback
from proctor.callbacks.wandb import WandbCallback, WandbConfig, WandbResults
from proctor.report.run.history import history_of
from proctor.report.run.summary import by_task, clean_rows, tally
from proctor.runs.folder import EVAL_INFO_FILE, RUN_FILE, RunRecord
from proctor.runs.journal import (
    JOURNAL_FILE,
    EpisodeRecord,
    read_journal,
    videos_in,
    with_clean_tasks,
)
from proctor.stats.anytime import AnytimeInterval, MonitoredRates
from proctor.stats.counts import Counts


@contextmanager
def wandb_tracking(
    config: WandbConfig, folder: Path, record: RunRecord, before: Sequence[EpisodeRecord]
) -> Iterator[list[Callback]]:
    """Yield the W&B callback, if W&B is enabled, and upload the results at the end."""
    if not config.active:
        yield []
        return
    how = history_of(record).monitored
    clean_only = any(task.perturbation is None for task in record.tasks or ())
    counts = Counts.of(before, how.overall, clean_only=clean_only)
    log = WandbCallback(config, folder, _about(record), counts)
    failed = True
    try:
        yield [log]
        failed = False
    finally:
        results = wandb_results(folder, record, how)
        log.finish(results, failed=failed)


def wandb_results(folder: Path, record: RunRecord, how: MonitoredRates) -> WandbResults:
    """Read the final results for W&B from a run folder."""
    from proctor.report.run.page import REPORT_FILE  # late: the first action does not wait

    planned = record.planned_episodes
    rows = with_clean_tasks(read_journal(folder).rows, record.tasks or ())
    rows.sort(key=lambda row: row.key)
    overall, filmed, videos = tally(clean_rows(rows), how.overall), videos_in(folder), {}
    tasks = list(by_task(rows).values())
    for task_rows in tasks:
        paths = [folder / row.video for row in task_rows if row.video in filmed]
        if paths:
            videos[f"{task_rows[0].suite}/{task_rows[0].task}"] = paths
    files = [folder / name for name in (REPORT_FILE, RUN_FILE, EVAL_INFO_FILE, JOURNAL_FILE)]
    return WandbResults(
        summary={
            "result": str(overall),
            "planned_episodes": planned,
            "complete": len(rows) == planned,
            "mean_reward": overall.avg_sum_reward,
            "mean_steps_to_success": overall.mean_steps_to_success,
        },
        tasks=[_task(task_rows, how.task) for task_rows in tasks],
        videos=videos,
        files=[path for path in files if path.exists()],
    )


def _task(rows: Sequence[EpisodeRecord], anytime: AnytimeInterval | None) -> dict[str, Any]:
    added = tally(rows, anytime)
    low, high = added.interval or (None, None)
    failed, succeeded = added.bounds or (None, None)
    return {
        "group": rows[0].suite,
        "task": rows[0].task,
        "success": added.rate,
        "low95": low,
        "high95": high,
        "successes": added.successes if added.judged else None,
        "episodes": added.episodes,
        "diverged": added.diverged,
        "starts": added.units.distinct,
        "errors": added.errors,
        "if_errors_failed": failed,
        "if_errors_succeeded": succeeded,
        "mean_reward": added.avg_sum_reward,
        "mean_steps_to_success": added.mean_steps_to_success,
    }


def _about(record: RunRecord) -> dict[str, Any]:
    return {
        **record.resolved,
        "fingerprint": record.fingerprint,
        "protocol": record.protocol,
        "versions": record.versions,
        "machine": record.machine,
    }
