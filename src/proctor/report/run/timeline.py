"""Timeline of the workers, and how their time was spent. Pure functions of journal records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proctor.runs.journal import EpisodeRecord


@dataclass(frozen=True)
class WorkerSpan:
    """The time of one episode on a worker, including opening the simulator."""

    start_s: float
    """Seconds since the start of the run, without the time between sessions."""
    duration_s: float
    """0 for an errored episode: the journal has only the time at which it was given up."""


@dataclass(frozen=True)
class Timeline:
    """The spans of the episodes, in the order of the rows, and the total time."""

    spans: list[WorkerSpan]
    breaks: list[float]
    """Times at which a session ended and the next one continued."""
    total_s: float
    worker_s: float
    """Sum over sessions of duration times number of workers."""


def make_timeline(rows: Sequence[EpisodeRecord], sessions: Sequence[float]) -> Timeline:
    """Place all episodes on one time axis, without the gaps between sessions."""
    spans = [WorkerSpan(0.0, 0.0)] * len(rows)
    breaks: list[float] = []
    offset = worker_s = 0.0
    for members in _by_session(rows, sessions):
        if not members:
            continue
        begin = min(_opened_at(rows[index]) for index in members)
        end = max(rows[index].end_time for index in members)
        for index in members:
            row = rows[index]
            spans[index] = WorkerSpan(
                offset + _opened_at(row) - begin, row.end_time - _opened_at(row)
            )
        worker_s += (end - begin) * len({rows[index].worker for index in members})
        offset += end - begin
        breaks.append(offset)
    return Timeline(spans, breaks[:-1], offset, worker_s)


def time_spent(rows: Sequence[EpisodeRecord], timeline: Timeline) -> dict[str, float]:
    """Return the workers' seconds by activity; they add up to ``worker_s``."""
    spent = dict.fromkeys(("open", "simulate", "render", "wait", "other"), 0.0)
    for row, span in zip(rows, timeline.spans, strict=True):
        known = (row.open_s or 0.0, row.sim_s or 0.0, row.render_s or 0.0, row.wait_s or 0.0)
        for name, seconds in zip(("open", "simulate", "render", "wait"), known, strict=True):
            spent[name] += seconds
        spent["other"] += max(0.0, span.duration_s - sum(known))
    spent["idle"] = max(0.0, timeline.worker_s - sum(spent.values()))
    return spent


@dataclass(frozen=True)
class ThroughputLimit:
    """How close the run came to the throughput limit of its workers and its policy.

    The workers need at least the time to simulate and render; the policy needs at least the time
    of its inference. The busier of the two sets the limit.
    """

    workers: float
    """Share of the workers' time spent simulating or rendering."""
    policy: float
    """Share of the run's time spent in inference."""

    @property
    def fraction(self) -> float:
        """Least possible time of the run divided by its actual time."""
        return max(self.workers, self.policy)


def throughput_limit(
    spent: Mapping[str, float], timeline: Timeline, infer_s: float
) -> ThroughputLimit | None:
    """Return how close a run came to its limit; None if no time has passed."""
    if timeline.total_s <= 0 or timeline.worker_s <= 0:
        return None
    busy_s = spent["simulate"] + spent["render"]
    return ThroughputLimit(
        min(1.0, busy_s / timeline.worker_s), min(1.0, infer_s / timeline.total_s)
    )


def _by_session(rows: Sequence[EpisodeRecord], sessions: Sequence[float]) -> list[list[int]]:
    """Return the row indices of each session; rows from before all belong to the first."""
    members: list[list[int]] = [[] for _ in sessions or (0.0,)]
    for index, row in enumerate(rows):
        n_started = sum(start <= row.end_time for start in sessions)
        members[max(0, n_started - 1)].append(index)
    return members


def _opened_at(row: EpisodeRecord) -> float:
    """Return when the worker started to open the simulator; ``start_time`` is after that."""
    return row.start_time - (row.open_s or 0.0)
