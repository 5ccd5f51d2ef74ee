"""Values of the report page about failures: start states, groups, and plots under videos."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from proctor.features import Array
from proctor.report.html.formatting import round_significant
from proctor.report.run.failure_analysis import TaskAnalysis, analyse_failures
from proctor.report.run.run import Run
from proctor.runs.states import read_states
from proctor.runs.step_values import StepValues, read_step_values
from proctor.types import EpisodeKey

_MAX_PLOTS = 1000
"""Plots on a page, so that it stays under a few megabytes."""
_MAX_POINTS = 200
"""Points of a curve."""
_MAX_CURVES = 32


def failure_data(run: Run, tasks: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Return the start states and groups of failures by task, and the plots by episode."""
    position = {row.key: place for place, row in enumerate(run.rows)}
    analyses = analyse_failures(run.rows, read_states(run.path))
    starts: list[list[float | None] | None] = [None] * len(run.rows)
    stalled: list[int | None] = [None] * len(run.rows)
    for analysis in analyses.values():
        for key, values in analysis.starts.items():
            starts[position[key]] = values
        for key, step in analysis.stalled.items():
            stalled[position[key]] = step
    return {
        "tasks": [
            {"task": tasks.index(task), **_task(analysis, position)}
            for task, analysis in analyses.items()
        ],
        "starts": starts if analyses else None,
        "stalled": stalled if analyses else None,
        "plots": _plots(run, position),
    }


def _task(analysis: TaskAnalysis, position: Mapping[EpisodeKey, int]) -> dict[str, Any]:
    return {
        "names": analysis.names,
        "by_reward": analysis.by_reward,
        "groups": [
            {
                "episodes": [position[key] for key in group.episodes],
                "examples": [position[key] for key in group.examples],
                "stalled": [round_significant(step) for step in group.stalled],
                "kept_moving": group.kept_moving,
                "ends": [[name, round_significant(end)] for name, end in group.ends.items()],
            }
            for group in analysis.groups
        ],
    }


def _plots(run: Run, position: Mapping[EpisodeKey, int]) -> dict[str, Any]:
    """Return the curves of filmed episodes by their place in the list of episodes."""
    plots: dict[str, Any] = {}
    for key in sorted(run.video_keys)[:_MAX_PLOTS]:
        values = read_step_values(run.path, key)
        plot = None if values is None else _plot(values)
        if plot is not None:
            plots[str(position[key])] = plot
    return plots


def _plot(values: StepValues) -> dict[str, Any] | None:
    arrays = values.arrays()
    if arrays is None:
        return None
    actions, rewards = arrays
    return {
        "steps": len(rewards),
        "per_s": values.steps_per_s,
        "actions": [_curve(column) for column in actions.T[:_MAX_CURVES]],
        "reward": _curve(rewards),
    }


def _curve(values: Array) -> dict[str, Any]:
    """Return a curve as its range and one byte per point: far smaller than numbers in JSON.

    A long curve keeps, of every stretch, the value farthest from the mean, so that peaks stay.
    """
    known = np.nan_to_num(values)
    if len(known) > _MAX_POINTS:
        far = np.abs(known - known.mean())
        edges = np.linspace(0, len(known), _MAX_POINTS + 1).astype(int)
        known = np.array(
            [known[a + int(np.argmax(far[a:b]))] for a, b in itertools.pairwise(edges)]
        )
    low, high = float(known.min()), float(known.max())
    shares = np.zeros(len(known)) if high == low else (known - low) / (high - low)
    return {
        "low": round_significant(low),
        "high": round_significant(high),
        "points": base64.b64encode(np.round(255 * shares).astype(np.uint8).tobytes()).decode(),
    }
