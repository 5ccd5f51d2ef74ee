"""Warnings about the results of one run, for the terminal, ``eval_info.json`` and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from proctor.report.run.starts import start_warnings
from proctor.report.run.stopped import round_warnings
from proctor.runs.folder import RunRecord
from proctor.runs.journal import JOURNAL_FILE, EpisodeRecord


def run_warnings(rows: Sequence[EpisodeRecord], record: RunRecord) -> list[str]:
    """Return the recorded warnings of policy and benchmark, then those about the episodes."""
    about_episodes = start_warnings(rows) + round_warnings(rows, record.resolved)
    return [*record.warnings, *about_episodes]


def journal_warnings(folder: Path, damaged: Sequence[int]) -> list[str]:
    """Return a warning that names the damaged lines of a run's journal, if there are any."""
    if not damaged:
        return []
    numbers = ", ".join(map(str, damaged))
    return [f"{folder}: skipped unreadable lines of {JOURNAL_FILE}: {numbers}"]
