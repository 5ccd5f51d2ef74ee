"""The plan of an edited dataset: which episodes of which sources, under which feature names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from proctor.datasets.checks.uncounted import refuse_uncounted
from proctor.datasets.format.episodes import (
    EpisodeMetadata,
    Episodes,
    read_episode_stats,
    read_episodes,
)
from proctor.datasets.format.info import (
    DATA_PATH,
    VERSION,
    VIDEO_PATH,
    Info,
    data_file,
    video_file,
    with_axis,
)
from proctor.datasets.format.info_file import read_info
from proctor.datasets.format.tasks import read_tasks
from proctor.datasets.frames.encoder import Codec
from proctor.datasets.numbers.statistics import Stats
from proctor.datasets.writing.file_allocation import MB, FileNumber, group_by_limit
from proctor.datasets.writing.staging import StagingArea, counts_match_stats
from proctor.errors import DatasetError
from proctor.features import Array
from proctor.system.files import recover_swap
from proctor.system.links import refuse_leaving_links

FILES_PER_CHUNK = 1000
"""Files in one chunk folder of a converted v2.x dataset."""


@dataclass(frozen=True, eq=False)
class SourceDataset:
    """A dataset that an edit reads."""

    root: Path
    info: Info
    episodes: Episodes
    tasks: tuple[str, ...]

    @cached_property
    def rows(self) -> list[EpisodeMetadata]:
        """The metadata of all its episodes."""
        return [self.episodes[i] for i in range(len(self.episodes))]

    @cached_property
    def _stats(self) -> Sequence[Stats]:
        return read_episode_stats(self.root, self.info)

    def stats_of(self, episode: int) -> Stats:
        """Return the stored statistics of an episode; empty if the dataset has none."""
        return self._stats[episode] if episode < len(self._stats) else {}

    def levels_of(self, key: str, episode: int) -> Array | None:
        """Return the pixel counts [C, 256] of an episode's sampled images, if they were stored."""
        if key not in self._levels:
            channels = self.info.shape(key)[2]
            self._levels[key] = StagingArea(self.root).read_levels(key, channels)
        found = self._levels[key][episode : episode + 1]
        stats = self.stats_of(episode).get(key, {})
        return found[0] if len(found) and stats and counts_match_stats(found[0], stats) else None

    @cached_property
    def _levels(self) -> dict[str, Array]:
        return {}


def open_source(root: Path) -> SourceDataset:
    """Open the dataset in ``root`` as the source of an edit."""
    recover_swap(root)
    if root.is_dir():
        refuse_leaving_links(root)
    refuse_uncounted(root)
    info = read_info(root)
    return SourceDataset(root, info, read_episodes(root, info), read_tasks(root, info))


@dataclass(frozen=True)
class KeptEpisode:
    """A source episode that the result contains."""

    source: SourceDataset
    row: EpisodeMetadata
    task: str | None = None
    """New task of all its frames; None keeps their tasks."""


@dataclass(frozen=True)
class FileSizeLimits:
    """Size in bytes at which the next episode starts a new data or video file."""

    data: int
    video: int

    @classmethod
    def of(cls, info: Info) -> FileSizeLimits:
        """Return the limits that a dataset's info.json states."""
        return cls(int(info.data_files_size_in_mb * MB), int(info.video_files_size_in_mb * MB))


@dataclass(frozen=True)
class EditPlan:
    """Everything that determines the result of an edit."""

    info: Info
    """The result's info.json, except its totals."""
    kept: tuple[KeptEpisode, ...]
    called: Mapping[str, str] = field(default_factory=dict)
    """Renamed features: new name -> name in the sources."""
    codecs: Mapping[str, Codec] = field(default_factory=dict)
    """Codec of each camera that is encoded again; the videos of other cameras are copied."""
    recounted: frozenset[str] = frozenset()
    """Features whose statistics are computed again from the frames."""
    linked: bool = False
    """Whether unchanged files may be hard links to the source, which is removed afterwards."""
    limits: FileSizeLimits | None = None
    """Size limits of the result's files; None takes those of ``info``."""
    repack: bool = False
    """Identity edit: files are joined; rows, tasks, statistics and other files stay as they are."""

    @property
    def file_limits(self) -> FileSizeLimits:
        """The size limits of the result's files."""
        return self.limits or FileSizeLimits.of(self.info)

    def source_key(self, key: str) -> str:
        """Return the name of feature ``key`` in the sources."""
        return self.called.get(key, key)


def result_info(info: Info) -> Info:
    """Return the info of a result whose source has ``info``, in the current format version."""
    return replace(
        info,
        version=VERSION,
        features={key: with_axis(entry) for key, entry in info.features.items()},
        data_path=DATA_PATH,
        video_path=VIDEO_PATH,
        chunks_size=FILES_PER_CHUNK if info.is_v2 else info.chunks_size,
    )


@dataclass(frozen=True)
class FileSegment:
    """Consecutive episodes of the result that come from one file of a source."""

    source: SourceDataset
    path: Path
    positions: tuple[int, ...]
    """The episodes' numbers in the result."""
    whole: bool
    """Whether these are all episodes of the file, in the file's order."""
    share: float
    """Fraction of the file's frames that belong to these episodes."""


def data_segments(edit_plan: EditPlan) -> list[FileSegment]:
    """Return the segments of the sources' data files, in the order of the result's episodes."""

    def path_of(source: SourceDataset, file: FileNumber) -> Path:
        return data_file(source.root, source.info, *file)

    return _segments(edit_plan, lambda row: row.data, path_of)


def video_segments(edit_plan: EditPlan, key: str) -> list[FileSegment]:
    """Return the segments of camera ``key``'s video files, in the order of the episodes."""
    name = edit_plan.source_key(key)

    def file_of(row: EpisodeMetadata) -> FileNumber:
        return row.videos[name].chunk, row.videos[name].file

    def path_of(source: SourceDataset, file: FileNumber) -> Path:
        return video_file(source.root, source.info, name, *file)

    return _segments(edit_plan, file_of, path_of)


def _segments(
    edit_plan: EditPlan,
    file_of: Callable[[EpisodeMetadata], FileNumber],
    path_of: Callable[[SourceDataset, FileNumber], Path],
) -> list[FileSegment]:
    runs: list[tuple[SourceDataset, FileNumber, list[int]]] = []
    for position, kept in enumerate(edit_plan.kept):
        file = file_of(kept.row)
        if runs and runs[-1][0] is kept.source and runs[-1][1] == file:
            runs[-1][2].append(position)
        else:
            runs.append((kept.source, file, [position]))
    contents: dict[SourceDataset, dict[FileNumber, list[EpisodeMetadata]]] = {}
    for source in {run[0] for run in runs}:
        contents[source] = {}
        for row in source.rows:
            contents[source].setdefault(file_of(row), []).append(row)
    segments = []
    for source, file, positions in runs:
        rows = [edit_plan.kept[position].row for position in positions]
        inside = contents[source][file]
        share = sum(row.length for row in rows) / max(1, sum(row.length for row in inside))
        whole = [row.index for row in rows] == [row.index for row in inside]
        segments.append(FileSegment(source, path_of(source, file), tuple(positions), whole, share))
    return segments


def group_segments(segments: Iterable[FileSegment], limit: int) -> list[list[FileSegment]]:
    """Return which segments become one file: as many as ``limit`` bytes allow, at least one."""

    def size(segment: FileSegment) -> float:
        if not segment.path.is_file():
            raise DatasetError(
                f"{segment.path} is missing: the dataset is not complete",
                code="dataset.missing-file",
            )
        return segment.path.stat().st_size * segment.share

    return group_by_limit(((segment, size(segment)) for segment in segments), limit)
