"""Success rate against inference latency: one curve for runs that differ only in latency."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from proctor.fingerprint import flatten
from proctor.report.run.curve_points import curve_points
from proctor.report.run.run import Run

_LATENCY = ("eval.latency_steps", "policy.config.latency_steps")
"""Protocol fields with the latency: of the run, and of a policy that knows it."""
_FOLDER_SUFFIX = re.compile(r"_?latency\d+$")
"""Suffix that ``proctor eval`` appends to a run's name for its latency."""


def protocol_latency(protocol: Mapping[str, Any]) -> int:
    """Return the latency of a run: simulator steps that pass during an inference."""
    settings = protocol.get("eval")
    return (settings or {}).get("latency_steps") or 0


def latency_curves(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a curve for every policy that was evaluated with several latencies, one point a run.

    All points of a curve use the same episodes: those that all of its runs completed.
    """
    curves: dict[str, list[Run]] = {}
    for run in runs:
        fields = flatten(run.record.protocol)
        rest = {
            name: value
            for name, value in fields.items()
            if name not in _LATENCY and value is not None  # as in the fingerprint
        }
        curves.setdefault(json.dumps(rest, sort_keys=True), []).append(run)
    several = [own for own in curves.values() if len({_latency(run) for run in own}) > 1]
    return [_curve(sorted(own, key=_latency)) for own in several]


def _curve(runs: Sequence[Run]) -> dict[str, Any]:
    points, left_out = curve_points([[run] for run in runs])
    points = [{"latency": _latency(run), **point} for run, point in zip(runs, points, strict=True)]
    return {"name": _name(runs[0]), "points": points, "left_out": left_out}


def _latency(run: Run) -> int:
    return protocol_latency(run.record.protocol)


def _name(run: Run) -> str:
    """Return the name that the runs of a curve share."""
    folder = run.path.resolve().name
    return _FOLDER_SUFFIX.sub("", folder) or "success"
