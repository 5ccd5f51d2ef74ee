"""``proctor.datasets.open``: open a dataset, or some of its episodes, by folder or Hub id."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proctor.datasets.cache_settings import FrameCacheSettings
from proctor.datasets.format.episodes import Episodes
from proctor.datasets.format.info import Info, data_file, video_file
from proctor.datasets.frames.video import TOLERANCE_S, FrameReader
from proctor.datasets.reading.dataset import Dataset, ImageReadOptions
from proctor.datasets.reading.metadata import DatasetMetadata, read_dataset_metadata
from proctor.datasets.reading.windows import DeltaTimestamps, frame_offsets
from proctor.datasets.source import FoundDataset, find
from proctor.errors import DatasetError
from proctor.features import Array


@dataclass(frozen=True)
class DatasetHandle:
    """A dataset whose metadata are local and whose frames can be read or downloaded."""

    source: DatasetMetadata
    found: FoundDataset

    def frames(
        self,
        episodes: Sequence[int] | None = None,
        delta_timestamps: DeltaTimestamps | None = None,
        look: ImageReadOptions | None = None,
    ) -> Dataset:
        """Return the frames of ``episodes`` (None: all), and download their files if needed."""
        info, table = self.source.info, self.source.episodes
        look = look or ImageReadOptions(FrameReader())
        chosen = chosen_episodes(self.found.name, table, episodes)
        offsets = frame_offsets(delta_timestamps, info, look.reader.tolerance_s)
        if self.found.remote is not None:
            self.found.fetch(_files(info, table, chosen))
        return Dataset(self.source, chosen, offsets, look)

    def require_files(self, episodes: Sequence[int], keys: Collection[str]) -> None:
        """Check that data files of ``episodes`` exist, and videos of the cameras ``keys``."""
        info, table = self.source.info, self.source.episodes
        chosen = chosen_episodes(self.found.name, table, episodes)
        files = (self.found.root / file for file in _files(info, table, chosen, keys))
        missing = [file for file in files if not file.exists()]
        if missing:
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise DatasetError(
                f"{missing[0]}{more}: a file of the dataset is missing; restore it, or leave its "
                "episodes out (--dataset.exclude_episodes)",
                code="dataset.missing-file",
            )


def open_handle(
    path_or_id: str | Path, root: str | Path | None = None, revision: str | None = None
) -> DatasetHandle:
    """Find a dataset and read its metadata; only the metadata are downloaded."""
    found = find(path_or_id, None if root is None else Path(root), revision)
    return DatasetHandle(read_dataset_metadata(found.name, found.root), found)


def open(
    path_or_id: str | Path,
    *,
    root: str | Path | None = None,
    episodes: Sequence[int] | None = None,
    revision: str | None = None,
    delta_timestamps: DeltaTimestamps | None = None,
    tolerance_s: float = TOLERANCE_S,
    image_size: tuple[int, int] | None = None,
    cache: FrameCacheSettings | None = None,
) -> Dataset:
    """Open a dataset by its folder or Hub id; only the needed files are downloaded.

    The format versions v3.0, v2.1 and v2.0 are read without conversion.

    Args:
        root: local folder of a dataset that ``path_or_id`` names by its Hub id.
        episodes: episodes to read; their frames are numbered without gaps. None reads all.
        revision: branch, tag or commit on the Hub.
        delta_timestamps: seconds relative to a frame, which give a feature a time axis, such as
            ``{"action": [0.0, 0.1, 0.2]}``.
        tolerance_s: largest difference between a requested and a decoded frame, in seconds.
        image_size: height and width that images are resized to when they are decoded.
        cache: where decoded frames are kept.
    """
    look = ImageReadOptions(
        FrameReader(tolerance_s=tolerance_s), image_size, cache or FrameCacheSettings()
    )
    return open_handle(path_or_id, root, revision).frames(episodes, delta_timestamps, look)


def chosen_episodes(name: str, table: Episodes, episodes: Sequence[int] | None) -> Array:
    """Return the episodes to read, sorted and without duplicates."""
    if episodes is None:
        return np.arange(len(table))
    given = np.asarray(episodes)
    if given.size and given.dtype.kind not in "iu":  # a boolean mask would read as 0 and 1
        raise DatasetError(
            f"episodes must be a list of integers, got {episodes!r:.60}",
            code="dataset.invalid-episodes",
        )
    wanted = np.unique(given.astype(np.int64))
    wrong = wanted[(wanted < 0) | (wanted >= len(table))]
    if len(wrong):
        has = f"0 to {len(table) - 1}" if len(table) else "none"
        raise DatasetError(
            f"{name} has no episode {wrong[0]} (it has {has})", code="dataset.unknown-episode"
        )
    return wanted


def _files(
    info: Info, table: Episodes, chosen: Array, keys: Collection[str] | None = None
) -> list[str]:
    """Return the paths, relative to the dataset, of the files that hold ``chosen`` episodes.

    Of videos, those of the cameras ``keys`` (None: all cameras).
    """
    here = Path()
    tables = _pairs(table.data_chunk[chosen], table.data_file[chosen])
    paths = [data_file(here, info, *pair) for pair in tables]
    for key, spans in table.videos.items():
        if keys is not None and key not in keys:
            continue
        videos = _pairs(spans.chunk[chosen], spans.file[chosen])
        paths += [video_file(here, info, key, *pair) for pair in videos]
    return [path.as_posix() for path in paths]


def _pairs(chunks: Array, files: Array) -> list[tuple[int, int]]:
    return list(dict.fromkeys(zip(chunks.tolist(), files.tolist(), strict=True)))
