"""Status of a run or training, and its remaining time."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from proctor.runs.journal import EpisodeRecord


class Status(Enum):
    """Text of the status badge of a run or training."""

    RUNNING = "running"
    COMPLETE = "complete"
    STOPPED = "stopped early"
    INCOMPLETE = "incomplete"


def status_of(done: int, planned: int | None, *, running: bool, stopped: bool = False) -> Status:
    """Return the status; ``running``: a process works on it, ``stopped``: a stop rule ended it."""
    if running:
        return Status.RUNNING
    if stopped:
        return Status.STOPPED
    return Status.INCOMPLETE if planned is not None and done < planned else Status.COMPLETE


def seconds_left(
    rows: Sequence[EpisodeRecord], planned: int | None, sessions: Sequence[float]
) -> float | None:
    """Estimate the remaining seconds from the speed of the newest session; None: unknown."""
    if planned is None or not sessions:
        return None
    ends = [row.end_time for row in rows if row.end_time >= sessions[-1]]
    left = planned - len(rows)
    if left <= 0:
        return 0.0
    return (max(ends) - sessions[-1]) / len(ends) * left if ends else None
