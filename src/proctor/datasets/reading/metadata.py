"""The metadata of a dataset, which are read before any frame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from proctor.datasets.format.episode_stats import range_columns
from proctor.datasets.format.episodes import Episodes, read_episode_stats
from proctor.datasets.format.info import Info
from proctor.datasets.format.tables import Stats, read_stats
from proctor.datasets.frames.depth import DepthUnit
from proctor.datasets.numbers.statistics import aggregate
from proctor.datasets.reading.frame_source import image_shape
from proctor.datasets.reading.staleness import (
    Metadata,
    MetadataStamp,
    StalenessGuard,
    read_metadata,
)
from proctor.features import ACTION, ActionSpec, Array, FeatureKind, Interface, from_info

_OBSERVED = (FeatureKind.STATE, FeatureKind.ENV, FeatureKind.VISUAL, FeatureKind.LANGUAGE)


@dataclass(frozen=True)
class DatasetMetadata:
    """A dataset's folder and metadata."""

    name: str
    root: Path
    info: Info
    episodes: Episodes
    tasks: tuple[str, ...]
    subtasks: tuple[str, ...] | None = None
    """Texts of ``subtask_index``, if the dataset has them."""
    stamp: MetadataStamp | None = None
    """File stamps from before reading; None if no other process can write to the folder."""

    def guard(self, chosen: Array, tables: Iterable[Path] = ()) -> StalenessGuard | None:
        """Return a guard that detects edits while ``chosen`` episodes are read from ``tables``."""
        if self.stamp is None:
            return None
        known = Metadata(self.info, self.episodes, self.tasks, self.subtasks)
        return StalenessGuard(self.root, known, self.stamp, chosen, tables)

    @cached_property
    def ranges(self) -> dict[str, Array]:
        """Each episode's minimum and maximum of actions and states, by v3.0 column name.

        Without statistics of episodes, those of the whole dataset.
        """
        if self.episodes.ranges:
            return self.episodes.ranges
        found = read_episode_stats(self.root, self.info) or [read_stats(self.root)]
        ranges = {}
        for column in range_columns():
            _, key, name = column.split("/")
            rows = [stats[key][name] for stats in found if name in stats.get(key, {})]
            if rows:
                ranges[column] = np.stack(rows).astype(np.float64)
        return ranges

    @cached_property
    def stats(self) -> Stats:
        """The statistics of the whole dataset; depth is in millimetres, as it is read."""
        found = read_stats(self.root) or aggregate(read_episode_stats(self.root, self.info))
        guard = self.guard(np.arange(len(self.episodes)))
        if guard is not None:
            guard.check()
        for key in found.keys() & set(self.info.cameras):
            entry = self.info.entry(key)
            if self.info.is_depth(key) and DepthUnit.of(key, entry) is DepthUnit.METRE:
                scaled = {n: v if n == "count" else v * 1000 for n, v in found[key].items()}
                found[key] = scaled
        return found

    def interface(self, image_size: tuple[int, int] | None = None) -> Interface:
        """Return the dataset's observations and actions, as a policy's interface.

        ``image_size`` is the height and width that images are resized to.
        """
        info = self.info
        found = {key: from_info(key, entry) for key, entry in info.features.items()}
        for key in info.cameras:
            shape = image_shape(info, key, image_size)
            found[key] = replace(info.feature(key), shape=shape)
        return Interface(
            name=self.name,
            features={k: f for k, f in found.items() if f is not None and f.kind in _OBSERVED},
            action=ActionSpec(int(np.prod(info.feature(ACTION).shape))),
            fps=info.fps,
        )


def read_dataset_metadata(name: str, root: Path) -> DatasetMetadata:
    """Read the metadata of the dataset in ``root``."""
    stamp = MetadataStamp.of(root)
    found = read_metadata(root)
    return DatasetMetadata(
        name, root, found.info, found.episodes, found.tasks, found.subtasks, stamp
    )
