"""The identity of a dataset's contents, which a move, a copy and compaction do not change.

It consists of the features, and each episode's length, tasks and exact ranges of actions and
states, which are in the metadata. File names and images are not compared.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from proctor.datasets.format.info import DEFAULT_FEATURES
from proctor.datasets.reading.metadata import DatasetMetadata


@dataclass(frozen=True)
class DatasetIdentity:
    """Hashes of the contents of a dataset's first ``episodes`` episodes."""

    episodes: int
    frames: int
    fps: int
    features: dict[str, str]
    """Feature -> its dtype and shape."""
    lengths: str
    tasks: str
    values: dict[str, str]
    """Hash of the ranges of actions and states."""

    def feature_differences(self, now: DatasetIdentity) -> list[str]:
        """Return the differences in fps and features to ``now``; added features do not count."""
        if self.fps != now.fps:
            return [f"it has {now.fps} frames a second instead of {self.fps}"]
        changed = [key for key, kind in self.features.items() if now.features.get(key) != kind]
        return [f"its {key} is {now.features.get(key, 'gone')}" for key in changed[:1]]

    def differences(self, now: DatasetIdentity) -> list[str]:
        """Return the differences to ``now``; added features do not count."""
        unfit = self.feature_differences(now)
        if unfit:
            return unfit
        if self.episodes != now.episodes:
            return [f"it has {now.episodes:,} episodes instead of {self.episodes:,}"]
        if (self.frames, self.lengths) != (now.frames, now.lengths):
            return ["its episodes are of other lengths"]
        found = []
        if self.tasks != now.tasks:
            found.append("its tasks differ")
        if any(now.values.get(name) != value for name, value in self.values.items()):
            found.append("its actions or states differ")
        return found


def identity_of(source: DatasetMetadata, episodes: int | None = None) -> DatasetIdentity:
    """Return the identity of a dataset, or of its first ``episodes`` episodes."""
    info, table = source.info, source.episodes
    n = len(table) if episodes is None else min(episodes, len(table))
    words = [list(texts) for texts in table.tasks[:n]]
    return DatasetIdentity(
        episodes=n,
        frames=int(table.length[:n].sum()),
        fps=info.fps,
        features={
            key: f"{info.dtype(key)} {list(info.shape(key))}"
            for key in info.features
            if key not in DEFAULT_FEATURES
        },
        lengths=_hash(table.length[:n].astype("<i8").tobytes()),
        tasks=_hash(json.dumps(words if any(words) else source.tasks).encode()),
        values={
            column: _hash(rows[:n].astype("<f8").tobytes())
            for column, rows in source.ranges.items()
        },
    )


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
