"""JSON values of the dataset page: of the whole dataset, and of one episode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from proctor.datasets.format.info import DEFAULT_FEATURES
from proctor.datasets.reading.dataset import Dataset
from proctor.errors import strip_control_codes
from proctor.features import ACTION, STATE
from proctor.report.dataset.media import BROWSER_CODECS
from proctor.report.dataset.summary import DatasetSummary
from proctor.report.dataset.tables import component_names, duration, size_text

_MOST_POINTS = 2000
"""Points of a plot: more than a screen has columns."""
_MOST_COMPONENTS = 64
"""Components of a feature that is plotted."""
_STATS = ("min", "q01", "q10", "q50", "q90", "q99", "max", "mean", "std", "count")
_FIRST = (STATE, ACTION)


def dataset_data(summary: DatasetSummary, episodes: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the values of the page; ``episodes`` are listed (None: all)."""
    info, table = summary.info, summary.episodes
    rows = np.arange(len(table)) if episodes is None else np.array(episodes, np.int64)
    known = {task: number for number, (task, _) in enumerate(summary.episodes_by_task())}
    return {
        "title": summary.name,
        "about": strip_control_codes(str(summary.root)),
        "folder": strip_control_codes(summary.root.resolve().name),
        "fps": info.fps,
        "figures": _figures(summary),
        "tasks": list(known),
        "total": len(table),
        "episodes": {
            "index": rows.tolist(),
            "tasks": [[known[task] for task in table.tasks[row]] for row in rows],
            "length": table.length[rows].tolist(),
        },
        "cameras": [
            {
                "key": camera.key,
                "size": f"{camera.width}x{camera.height}",
                "plays": camera.codec in BROWSER_CODECS and not camera.is_depth,
                "codec": camera.codec,
            }
            for camera in summary.cameras
        ],
        "features": [
            [key, entry["dtype"], "x".join(map(str, entry["shape"])), _names(summary, key)]
            for key, entry in info.features.items()
        ],
        "stats": _stats(summary),
    }


def _figures(summary: DatasetSummary) -> list[list[str]]:
    info, length = summary.info, summary.episodes.length
    figures = [
        ["Episodes", f"{info.total_episodes:,}"],
        ["Frames", f"{info.total_frames:,}"],
        ["Time", duration(info.total_frames / info.fps)],
        ["Frames per second", str(info.fps)],
        ["Tasks", f"{len(summary.episodes_by_task()):,}"],
    ]
    if len(length):
        figures.append(["Frames per episode", f"{length.min():,} to {length.max():,}"])
    figures.append(["On disk", size_text(sum(size for _, size in summary.sizes.values()))])
    figures.append(["Format", info.version])
    if info.robot_type:
        figures.append(["Robot", info.robot_type])
    return figures


def _names(summary: DatasetSummary, key: str) -> str:
    shape = summary.info.entry(key)["shape"]
    size = math.prod(shape) if key not in summary.info.cameras else 0
    return ", ".join(component_names(summary, key, size)) if size <= _MOST_COMPONENTS else ""


def _stats(summary: DatasetSummary) -> list[list[Any]]:
    """Return a row for each component of each feature: key, component, then ``_STATS``."""
    rows: list[list[Any]] = []
    for key in summary.info.features:
        stats = summary.stats.get(key)
        if stats is None or key in DEFAULT_FEATURES:
            continue
        flat = {name: value.reshape(-1) for name, value in stats.items()}
        size = max(len(flat.get(name, ())) for name in ("min", "mean"))
        names = component_names(summary, key, size)
        for index in range(min(size, _MOST_COMPONENTS)):
            rows.append([key, names[index], *(_entry(flat.get(name), index) for name in _STATS)])
    return rows


def _entry(values: Any, index: int) -> float | None:
    """Return one statistic of a component; a single value holds for all components."""
    if values is None or len(values) == 0:
        return None
    return _number(values[min(index, len(values) - 1)])


def _number(value: Any) -> float | None:
    return float(f"{float(value):.6g}") if math.isfinite(value) else None


def plotted_features(dataset: Dataset) -> list[str]:
    """Return the numeric features: state and action first, the others in the dataset's order."""
    info = dataset.info
    keys = [
        key
        for key in info.columns
        if key not in DEFAULT_FEATURES
        and info.dtype(key) not in ("image", "string", "language")
        and math.prod(info.shape(key)) <= _MOST_COMPONENTS
    ]
    return sorted(keys, key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))


def episode_data(dataset: Dataset, summary: DatasetSummary) -> dict[str, Any]:
    """Return the plotted values of an episode; ``dataset`` was opened for this episode alone."""
    length = len(dataset)
    every = max(1, math.ceil(length / _MOST_POINTS))
    frames = np.arange(0, length, every)
    keys = plotted_features(dataset)
    found = dataset.batch(frames, keys=keys) if length else {"task": []}
    series = []
    for key in keys if length else ():
        values = np.asarray(found[key], np.float64).reshape(len(frames), -1)
        names = component_names(summary, key, values.shape[1])
        columns = [[_number(value) for value in column] for column in values.T]
        series.append({"key": key, "names": names, "values": columns})
    tasks = found["task"]
    changes = [i for i in range(len(tasks)) if i == 0 or tasks[i] != tasks[i - 1]]
    return {
        "every": every,
        "series": series,
        "said": [[int(frames[i]), tasks[i]] for i in changes],
    }
