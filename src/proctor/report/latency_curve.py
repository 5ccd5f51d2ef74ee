"""Success against thinking time: what runs that differ in latency add up to, as a curve each."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from proctor.fingerprint import flatten
from proctor.report.run import Run
from proctor.report.summary import tally
from proctor.runs.journal import EpisodeRecord

_LATENCY = ("eval.latency_steps", "policy.config.latency_steps")
"""Where a protocol says it: of the run, and of a policy that is told."""
_OF_FOLDER = re.compile(r"_?latency\d+$")
"""What ``proctor eval`` puts behind a run's name for its latency."""


def protocol_latency(protocol: Mapping[str, Any]) -> int:
    """Return how many steps the world went on while the policy thought."""
    played = protocol.get("eval")
    return (played or {}).get("latency_steps") or 0


def latency_curves(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a curve for every policy that was played with several latencies; one point a run.

    A curve is of the same episodes at every point: what not all of its runs completed is left out.
    Else one that ran other tasks, or is not finished, would look like one that bears more.
    """
    curves: dict[str, list[Run]] = {}
    for run in runs:
        said = flatten(run.record.protocol)
        rest = {
            name: value
            for name, value in said.items()
            if name not in _LATENCY and value is not None  # as in a fingerprint: null says nothing
        }
        curves.setdefault(json.dumps(rest, sort_keys=True), []).append(run)
    several = [own for own in curves.values() if len({_latency(run) for run in own}) > 1]
    return [_curve(sorted(own, key=_latency)) for own in several]


def _curve(runs: Sequence[Run]) -> dict[str, Any]:
    completed = [{_start(row) for row in run.rows if row.outcome.counts} for run in runs]
    shared = set.intersection(*completed)
    points = [_point(run, shared) for run in runs]
    left_out = sum(len(run.rows) for run in runs) - sum(point["episodes"] for point in points)
    return {"name": _name(runs[0]), "points": points, "left_out": left_out}


def _start(row: EpisodeRecord) -> tuple[str, str, int, int | None]:
    return (row.suite, row.task, row.seed, row.init_state)


def _latency(run: Run) -> int:
    return protocol_latency(run.record.protocol)


def _name(run: Run) -> str:
    """Return what the runs of a curve share of their names."""
    folder = run.path.resolve().name
    return _OF_FOLDER.sub("", folder) or "success"


def _point(run: Run, shared: Container[tuple[str, str, int, int | None]]) -> dict[str, Any]:
    rows = [row for row in run.rows if row.outcome.counts and _start(row) in shared]
    added = tally(rows, run.monitored.overall)
    return {
        "latency": _latency(run),
        "rate": added.rate,
        "interval": None if added.interval is None else list(added.interval),
        "successes": added.successes,
        "episodes": added.episodes,
    }
