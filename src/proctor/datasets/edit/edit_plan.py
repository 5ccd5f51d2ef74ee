"""What an edited dataset is made of: which episodes of which datasets, under which names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from proctor.datasets.format.episodes import (
    EpisodeMetadata,
    Episodes,
    read_episode_stats,
    read_episodes,
)
from proctor.datasets.format.info import DATA_PATH, VERSION, VIDEO_PATH, Info, with_axis
from proctor.datasets.format.info_file import read_info
from proctor.datasets.format.tasks import read_tasks
from proctor.datasets.frames.encoder import Codec
from proctor.datasets.numbers.statistics import Stats
from proctor.datasets.writing.file_allocation import group_by_limit
from proctor.datasets.writing.staging import StagingArea, counts_match_stats
from proctor.errors import DatasetError
from proctor.features import Array
from proctor.system.files import recover_swap

FileNumber = tuple[int, int]
"""The chunk and the file of a table or a video."""
FILES_OF_A_FOLDER = 1000
MB = 2**20


@dataclass(frozen=True, eq=False)
class SourceDataset:
    """A dataset that is read."""

    root: Path
    info: Info
    episodes: Episodes
    tasks: tuple[str, ...]

    @cached_property
    def rows(self) -> list[EpisodeMetadata]:
        """All its episodes."""
        return [self.episodes[i] for i in range(len(self.episodes))]

    @cached_property
    def _stats(self) -> Sequence[Stats]:
        return read_episode_stats(self.root, self.info)

    def stats_of(self, episode: int) -> Stats:
        """Return the statistics of an episode as they stand there; empty where none do."""
        return self._stats[episode] if episode < len(self._stats) else {}

    def levels_of(self, key: str, episode: int) -> Array | None:
        """Return how often each level is in an episode's pictures, if the recorder kept it."""
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
    """Open the dataset in ``root``.

    Raises:
        DatasetError: there is none, or it cannot be read.
    """
    recover_swap(root)
    info = read_info(root)
    return SourceDataset(root, info, read_episodes(root, info), read_tasks(root, info))


@dataclass(frozen=True)
class KeptEpisode:
    """An episode of the result."""

    source: SourceDataset
    row: EpisodeMetadata
    task: str | None = None
    """What all its frames are told to do from now on; None: what they were."""


@dataclass(frozen=True)
class EditPlan:
    """A dataset to be made."""

    info: Info
    """What it will say of itself, but for its totals."""
    kept: tuple[KeptEpisode, ...]
    called: Mapping[str, str] = field(default_factory=dict)
    """What a feature is called in the sources, where that is another name than here."""
    codecs: Mapping[str, Codec] = field(default_factory=dict)
    """The cameras whose pictures are encoded again, and how; all others are copied."""
    recounted: frozenset[str] = frozenset()
    """The features whose statistics are worked out again from the frames."""
    linked: bool = False
    """Whether files that stay as they are may be shared with the source, which is then removed."""

    def source_key(self, key: str) -> str:
        """Return what feature ``key`` is called in the sources."""
        return self.called.get(key, key)


def result_info(info: Info) -> Info:
    """Return what a dataset made of one with ``info`` says of itself: in today's version."""
    return replace(
        info,
        version=VERSION,
        features={key: with_axis(entry) for key, entry in info.features.items()},
        data_path=DATA_PATH,
        video_path=VIDEO_PATH,
        chunks_size=FILES_OF_A_FOLDER if info.is_v2 else info.chunks_size,
    )


@dataclass(frozen=True)
class FileSegment:
    """Episodes of the result, one after the other, that lie in one file of a source."""

    source: SourceDataset
    file: FileNumber
    places: tuple[int, ...]
    """Where in the result they are."""
    whole: bool
    """Whether they are all that is in the file, in its order."""
    share: float
    """How much of the file's frames they are."""


def file_segments(
    edit_plan: EditPlan, file_of: Callable[[EpisodeMetadata], FileNumber]
) -> list[FileSegment]:
    """Return the files that the result is made of, in order."""
    runs: list[tuple[SourceDataset, FileNumber, list[int]]] = []
    for place, kept in enumerate(edit_plan.kept):
        file = file_of(kept.row)
        if runs and runs[-1][0] is kept.source and runs[-1][1] == file:
            runs[-1][2].append(place)
        else:
            runs.append((kept.source, file, [place]))
    contents = {source: _contents(source, file_of) for source in {run[0] for run in runs}}
    parts = []
    for source, file, places in runs:
        rows = [edit_plan.kept[place].row for place in places]
        inside = contents[source][file]
        share = sum(row.length for row in rows) / sum(row.length for row in inside)
        whole = [row.index for row in rows] == [row.index for row in inside]
        parts.append(FileSegment(source, file, tuple(places), whole, share))
    return parts


def _contents(
    source: SourceDataset, file_of: Callable[[EpisodeMetadata], FileNumber]
) -> dict[FileNumber, list[EpisodeMetadata]]:
    """Return the episodes of each file."""
    found: dict[FileNumber, list[EpisodeMetadata]] = {}
    for row in source.rows:
        found.setdefault(file_of(row), []).append(row)
    return found


def grouped(
    parts: Iterable[FileSegment], path_of: Callable[[FileSegment], Path], limit_mb: int
) -> list[list[FileSegment]]:
    """Return which parts become one file: as many as the limit allows, one at least.

    Raises:
        DatasetError: a file is not there.
    """

    def size(part: FileSegment) -> float:
        path = path_of(part)
        if not path.is_file():
            raise DatasetError(f"{path} is missing: the dataset is not complete")
        return path.stat().st_size * part.share

    return group_by_limit(((part, size(part)) for part in parts), limit_mb * MB)
