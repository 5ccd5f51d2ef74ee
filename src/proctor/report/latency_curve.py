"""Success against thinking time: what runs that differ in latency add up to, as a curve each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from proctor.definition import flatten
from proctor.report.pairing import RunResults
from proctor.report.summary import tally
from proctor.stats.anytime import watched

_LATENCY = ("eval.latency_steps", "policy.config.latency_steps")
"""Where a protocol says it: of the run, and of a policy that is told."""
_OF_FOLDER = re.compile(r"_?latency\d+$")
"""What ``proctor eval`` puts behind a run's name for its latency."""


def latency_of(protocol: Mapping[str, Any]) -> int:
    """Return how many steps the world went on while the policy thought."""
    played = protocol.get("eval")
    return (played or {}).get("latency_steps") or 0


def latency_curves(runs: Sequence[RunResults]) -> list[dict[str, Any]]:
    """Return a curve for every policy that was played with several latencies; one point a run."""
    curves: dict[str, list[RunResults]] = {}
    for run in runs:
        said = flatten(run.record.protocol)
        rest = {
            name: value
            for name, value in said.items()
            if name not in _LATENCY and value is not None  # as in a fingerprint: null says nothing
        }
        curves.setdefault(json.dumps(rest, sort_keys=True), []).append(run)
    several = [own for own in curves.values() if len({_latency(run) for run in own}) > 1]
    return [
        {"name": _name(own[0]), "points": [_point(run) for run in sorted(own, key=_latency)]}
        for own in several
    ]


def _latency(run: RunResults) -> int:
    return latency_of(run.record.protocol)


def _name(run: RunResults) -> str:
    """Return what the runs of a curve share of their names."""
    folder = run.path.resolve().name
    return _OF_FOLDER.sub("", folder) or "success"


def _point(run: RunResults) -> dict[str, Any]:
    added = tally(run.rows, watched(run.record.resolved).overall)
    return {
        "latency": _latency(run),
        "rate": added.rate,
        "interval": None if added.interval is None else list(added.interval),
        "successes": added.successes,
        "episodes": added.episodes,
    }
