"""The statistics of an edited dataset: from the data; an episode keeps its source's quantiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from proctor.datasets.edit.edit_plan import EditPlan, FileSegment, KeptEpisode
from proctor.datasets.edit.frames import RENUMBERED
from proctor.datasets.edit.images import count_pixel_levels
from proctor.datasets.format.info import DEFAULT_FEATURES
from proctor.datasets.numbers.quantiles import RunningStatistics
from proctor.datasets.numbers.statistics import (
    QUANTILES,
    FeatureStats,
    Stats,
    array_stats,
    features_with_stats,
    moments,
    pixel_stats,
    sampled_frames,
    with_image_count,
)
from proctor.features import Array

_NEEDED = ("min", "max", "mean", "std", "count")


class EditedStatistics:
    """Accumulates the statistics of the result, segment by segment."""

    def __init__(self, edit_plan: EditPlan, seen: Mapping[str, Sequence[Array]]) -> None:
        """Start without frames. ``seen``: pixel counts [C, 256] per encoded camera and episode."""
        self._edit_plan, self._seen = edit_plan, seen
        self._keys = features_with_stats(edit_plan.info.features)
        self._totals = RunningStatistics()
        self.episodes: list[Stats] = []
        """The statistics of each episode, in order."""
        self.levels: list[dict[str, Array | None]] = []
        """Per episode and camera: pixel counts [C, 256], or None if unknown."""

    def add(self, segment: FileSegment, numbers: Mapping[str, Array]) -> None:
        """Add the frames of a segment's episodes."""
        stats, pixels, start = [], [], 0
        for place in segment.positions:
            stop = start + self._edit_plan.kept[place].row.length
            of_episode = {key: values[start:stop] for key, values in numbers.items()}
            found, levels = self._stats(place, of_episode)
            stats.append(found)
            pixels.append(levels)
            start = stop
        self._totals.add_all(stats, numbers, pixels)
        self.episodes += stats
        self.levels += pixels

    def total(self) -> Stats:
        """Return the statistics of the whole dataset."""
        return self._totals.stats()

    def _stats(
        self, place: int, numbers: Mapping[str, Array]
    ) -> tuple[Stats, dict[str, Array | None]]:
        """Return an episode's statistics, and the pixel counts of its cameras."""
        kept = self._edit_plan.kept[place]
        known = kept.source.stats_of(kept.row.index)
        stats: Stats = {}
        levels: dict[str, Array | None] = {}
        for key in self._keys:
            old = known.get(self._edit_plan.source_key(key), {})
            told = all(name in old and old[name].size for name in _NEEDED)
            if key in self._edit_plan.recounted or not told:
                old = {}
            if old and key in self._edit_plan.info.cameras:
                old = with_image_count(old, kept.row.length)
            if key in numbers:
                stats[key] = _of_numbers(key, old, numbers[key])
            elif not self._edit_plan.info.is_depth(key):
                stats[key], levels[key] = self._of_pictures(kept, place, key, old)
            elif old:  # depth has no pixel counts
                stats[key] = old
        return stats, levels

    def _of_pictures(
        self, kept: KeptEpisode, place: int, key: str, old: FeatureStats
    ) -> tuple[FeatureStats, Array | None]:
        if key in self._seen:
            levels = self._seen[key][place]
        elif old:
            return old, kept.source.levels_of(self._edit_plan.source_key(key), kept.row.index)
        else:
            levels = count_pixel_levels(kept, self._edit_plan.source_key(key))
        return pixel_stats(levels, len(sampled_frames(kept.row.length))), levels


def _of_numbers(key: str, old: FeatureStats, values: Array) -> FeatureStats:
    """Return the statistics of an episode's ``values``; ``old`` are those of the source.

    Quantiles are kept. The rest is computed from the data, as LeRobot's standard deviations may be
    float32.
    """
    if not all(name in old for name in QUANTILES):
        return array_stats(values)
    if key not in DEFAULT_FEATURES:
        return old | moments(values)
    if key not in RENUMBERED:
        return old
    one = values.min() == values.max() and np.array_equal(old["min"], old["max"])
    if key == "task_index" and not one:  # LeRobot's edits keep the statistics of old task numbers
        return array_stats(values)
    shift = float(values.ravel()[0]) - float(old["min"].ravel()[0])
    return {
        name: value if name in ("std", "count") else value + shift for name, value in old.items()
    }
