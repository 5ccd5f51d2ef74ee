"""Check that statistics exist, have the right shape, and match the data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from proctor.datasets.checks.findings import (
    DatasetFinding,
    FindingLevel,
    RepairCommands,
    episodes_text,
)
from proctor.datasets.checks.measured_statistics import MeasuredStatistics
from proctor.datasets.format.info import DEFAULT_FEATURES, Info

Stats = Mapping[str, Mapping[str, npt.NDArray[Any]]]
STATS_FILE = "meta/stats.json"
_NEEDED = ("min", "max", "mean", "std", "count")
_QUANTILES = ("q01", "q10", "q50", "q90", "q99")
_OF_ROUNDING = 1e-3
"""Tolerance as a fraction of a component's range."""
_OF_CANCELLATION = 4e-3
"""Tolerance of the standard deviation of a constant component, as a fraction of its magnitude.
LeRobot subtracts means in float32, which leaves some thousandths; dividing zero by it is fine."""
_OF_FLOAT32 = 2.0**-22
"""Rounding error of float32, as a fraction of a component's magnitude."""
_MISLEADING = 0.5
"""Difference in standard deviations from which a finding is an error, not a warning."""
_OF_SAMPLING = 0.06
"""Tolerance of image statistics in [0, 1]: they come from sampled frames before encoding."""


def check_stats(
    info: Info, stats: Stats, measured: Mapping[str, MeasuredStatistics], mends: RepairCommands
) -> Iterator[DatasetFinding]:
    """Check the statistics of the whole dataset, except those of the default features."""
    for key in info.features:
        if key in DEFAULT_FEATURES or info.dtype(key) in ("string", "language"):
            continue
        level = FindingLevel.ERROR
        what = _missing(key, stats) or _misshapen(info, key, stats[key]) or _disorder(stats[key])
        if what is None and key in measured and measured[key].is_whole:
            difference = _difference(stats[key], measured[key].overall())
            if difference is not None:
                what = f"{difference.what} ({info.total_episodes} episodes)"
                level = difference.level
        if what is not None:
            kind = "stats.missing" if key not in stats else "stats.differ"
            mend = mends.stats(pictures=key in info.cameras)
            yield DatasetFinding(level, kind, f"{key}: {what}", STATS_FILE, mend)
    for key in stats:
        if key not in info.features:
            what = f"{key}: the dataset has no such feature"
            yield DatasetFinding(
                FindingLevel.WARNING, "stats.unknown", what, STATS_FILE, mends.stats()
            )


def check_episode_stats(
    per_episode: Sequence[Stats],
    measured: Mapping[str, MeasuredStatistics],
    where: str,
    mends: RepairCommands,
) -> Iterator[DatasetFinding]:
    """Check the statistics of each episode, from which edit tools compute the dataset's."""
    for key, of_data in measured.items():
        wrong: list[int] = []
        first = ""
        for row, stats in enumerate(per_episode[: len(of_data.frames)]):
            if key not in stats or of_data.frames[row] == 0:
                continue
            difference = _difference(stats[key], of_data.of_episode(row))
            if difference is not None:
                first = first or difference.what
                wrong.append(row)
        if wrong:
            place = f"{where}, {episodes_text(wrong)}"
            yield DatasetFinding(
                FindingLevel.WARNING, "stats.episodes", f"{key}: {first}", place, mends.stats()
            )


def check_camera(
    key: str, stats: Stats, seen: npt.NDArray[np.float64], mends: RepairCommands
) -> Iterator[DatasetFinding]:
    """Check a camera's mean against ``seen``, the mean per channel of decoded frames, 0 to 1."""
    if key not in stats or "mean" not in stats[key]:
        return
    said = np.asarray(stats[key]["mean"], np.float64).reshape(-1)
    if said.shape == seen.shape and (np.abs(said - seen) > _OF_SAMPLING).any():
        what = f"{key}: mean is {_shown(said)}, its images have {_shown(seen)}"
        mend = mends.stats(pictures=True)
        yield DatasetFinding(FindingLevel.ERROR, "stats.differ", what, STATS_FILE, mend)


def _missing(key: str, stats: Stats) -> str | None:
    if key not in stats:
        return "no statistics"
    lacking = [name for name in _NEEDED if name not in stats[key]]
    return f"no {', '.join(lacking)}" if lacking else None


def _misshapen(info: Info, key: str, stats: Mapping[str, npt.NDArray[Any]]) -> str | None:
    """Describe the first entry whose shape LeRobot cannot aggregate."""
    shape = info.shape(key)
    expected = (shape[2], 1, 1) if key in info.cameras else (shape[-1] if shape else 1,)
    for name, value in stats.items():
        wanted = (1,) if name == "count" else expected
        if value.shape != wanted:
            return f"{name} has shape {list(value.shape)}, expected {list(wanted)}"
        if not np.isfinite(value).all():
            return f"{name} is not finite"
    if key in info.cameras and not info.is_depth(key) and float(stats["max"].max()) > 1.0 + 1e-6:
        return f"max is {float(stats['max'].max()):g}: images have values from 0 to 1"
    return None


def _disorder(stats: Mapping[str, npt.NDArray[Any]]) -> str | None:
    """Describe the first entries whose order is impossible, such as a minimum above the maximum."""
    slack = 1e-6 + _OF_ROUNDING * (stats["max"] - stats["min"])
    order = ["min", *(name for name in _QUANTILES if name in stats), "max"]
    for small, large in itertools.pairwise(order):
        if (stats[small] > stats[large] + np.abs(slack)).any():
            return f"{small} is greater than {large}"
    if (stats["std"] < 0).any():
        return "std is negative"
    return None


@dataclass(frozen=True)
class _Difference:
    """A difference between stored and measured statistics."""

    what: str
    level: FindingLevel = FindingLevel.ERROR


def _difference(
    said: Mapping[str, npt.NDArray[Any]], found: Mapping[str, npt.NDArray[np.float64]]
) -> _Difference | None:
    """Return the first entry that differs from the data: an error before a warning."""
    warning: _Difference | None = None
    for name in _NEEDED:
        if name not in said:
            return _Difference(f"no {name}")
        value = np.asarray(said[name], np.float64).reshape(-1)
        if value.shape != found[name].shape:
            return _Difference(f"{name} is {_shown(value)}, the data have {_shown(found[name])}")
        off = np.abs(value - found[name])
        allowed, misleading = _limits(name, found)
        for limit, level in ((misleading, FindingLevel.ERROR), (allowed, FindingLevel.WARNING)):
            (wrong,) = (off > limit).nonzero()
            if len(wrong):
                first = wrong[0]
                of = f" of component {first}" if len(value) > 1 else ""
                what = f"{name}{of} is {value[first]:.7g}, the data have {found[name][first]:.7g}"
                if level is FindingLevel.ERROR:
                    return _Difference(what)
                warning = warning or _Difference(what, level)
    return warning


def _limits(
    name: str, found: Mapping[str, npt.NDArray[np.float64]]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the tolerance of an entry, and the difference from which it harms training."""
    if name == "count":
        return np.array([0.5]), np.array([0.5])
    size = np.maximum(np.abs(found["min"]), np.abs(found["max"]))
    spread = found["max"] - found["min"]
    share = _OF_CANCELLATION if name == "std" else _OF_ROUNDING
    loose = 1e-6 + share * np.maximum(size, spread)
    tight = 1e-6 + _OF_ROUNDING * spread + _OF_FLOAT32 * size
    allowed = np.where(spread > 0, np.minimum(tight, loose), loose)
    return allowed, np.maximum(allowed, np.minimum(loose, _MISLEADING * found["std"]))


def _shown(values: npt.NDArray[Any]) -> str:
    shown = ", ".join(f"{value:.4g}" for value in values[:4])
    return f"[{shown}{', ...' if len(values) > 4 else ''}]"
