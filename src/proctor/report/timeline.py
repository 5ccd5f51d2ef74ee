"""When each worker did what: journal times on one axis, and what they add up to. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proctor.runs.journal import EpisodeRecord


@dataclass(frozen=True)
class WorkerSpan:
    """The time one episode held a worker, opening its simulator included."""

    start_s: float
    """Since the run began, leaving out the time between its sessions."""
    duration_s: float
    """0 for an errored episode: of one that broke, the journal knows only when it was given up."""


@dataclass(frozen=True)
class Timeline:
    """The spans of the episodes, in the order of the rows, and the worked time they lie in."""

    spans: list[WorkerSpan]
    breaks: list[float]
    """Where a session ended and the next one went on."""
    total_s: float
    worker_s: float
    """Each session's length times its workers: all the time there was."""


def make_timeline(rows: Sequence[EpisodeRecord], sessions: Sequence[float]) -> Timeline:
    """Lay out all episodes, session after session without the gaps between them."""
    spans = [WorkerSpan(0.0, 0.0)] * len(rows)
    breaks: list[float] = []
    offset = worker_s = 0.0
    for members in _by_session(rows, sessions):
        if not members:
            continue
        begin = min(_began(rows[place]) for place in members)
        end = max(rows[place].end_time for place in members)
        for place in members:
            row = rows[place]
            spans[place] = WorkerSpan(offset + _began(row) - begin, row.end_time - _began(row))
        worker_s += (end - begin) * len({rows[place].worker for place in members})
        offset += end - begin
        breaks.append(offset)
    return Timeline(spans, breaks[:-1], offset, worker_s)


def time_spent(rows: Sequence[EpisodeRecord], timeline: Timeline) -> dict[str, float]:
    """Return the workers' seconds by what they went to; they add up to all there was."""
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
    """How near the run came to the fastest that its workers and its policy allow.

    With these workers it takes at least as long as they simulate and render, if they never pause;
    with this policy at least as long as it computes. The busier of the two sets the limit.
    """

    workers: float
    """The share of the workers' time in which they simulated or rendered."""
    policy: float
    """The share of the run's time in which the policy computed."""

    @property
    def fraction(self) -> float:
        """The least time the run could have taken over the time it took."""
        return max(self.workers, self.policy)


def throughput_limit(
    spent: Mapping[str, float], timeline: Timeline, infer_s: float
) -> ThroughputLimit | None:
    """Compare a run with its limit; None when no time has passed."""
    if timeline.total_s <= 0 or timeline.worker_s <= 0:
        return None
    busy_s = spent["simulate"] + spent["render"]
    return ThroughputLimit(
        min(1.0, busy_s / timeline.worker_s), min(1.0, infer_s / timeline.total_s)
    )


def _by_session(rows: Sequence[EpisodeRecord], sessions: Sequence[float]) -> list[list[int]]:
    """Return the places of the rows that each session ran; one from before all is the first's."""
    members: list[list[int]] = [[] for _ in sessions or (0.0,)]
    for place, row in enumerate(rows):
        begun = sum(start <= row.end_time for start in sessions)
        members[max(0, begun - 1)].append(place)
    return members


def _began(row: EpisodeRecord) -> float:
    """Return when the worker turned to the episode: its clock starts once the simulator is open."""
    return row.start_time - (row.open_s or 0.0)
