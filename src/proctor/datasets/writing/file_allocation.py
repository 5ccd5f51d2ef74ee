"""Allocate unused file numbers to new episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from proctor.datasets.format.arrow import pq
from proctor.datasets.format.episodes import Episodes
from proctor.datasets.format.info import Info, data_file, episode_files, episodes_file, video_file
from proctor.features import Array

FileNumber = tuple[int, int]
"""Chunk and file number of a data, video or episodes file."""
MB = 2**20
_Part = TypeVar("_Part")


def file_number(info: Info, position: int) -> FileNumber:
    """Return the chunk and file number of the ``position``-th file of a kind."""
    return divmod(position, info.chunks_size)


def group_by_limit(sized: Iterable[tuple[_Part, float]], most_bytes: float) -> list[list[_Part]]:
    """Group neighbours into files: as many as stay below the limit, at least one."""
    groups: list[list[_Part]] = []
    filled = 0.0
    for part, size in sized:
        if groups and filled + size < most_bytes:
            groups[-1].append(part)
            filled += size
        else:
            groups.append([part])
            filled = size
    return groups


@dataclass(frozen=True)
class FileAllocation:
    """The files of episodes appended together."""

    episode: int
    """Number of the first episode."""
    data: list[FileNumber]
    """The data file of each episode; neighbours share one, up to the size limit."""
    episodes: FileNumber
    """The file of the episodes table, which all share."""
    videos: dict[str, list[FileNumber]]
    """The video of each episode, by camera."""

    def paths(self, root: Path, info: Info) -> list[Path]:
        """Return the paths in the order of removal, the reverse of their creation."""
        return [
            episodes_file(root, *self.episodes),
            *(data_file(root, info, *place) for place in dict.fromkeys(self.data)),
            *(
                video_file(root, info, key, *place)
                for key, places in self.videos.items()
                for place in places
                if key in info.video_keys
            ),
        ]

    def unused(self, root: Path, info: Info, episodes: Episodes) -> list[Path]:
        """Return the paths that no episode of the dataset uses."""
        used = {data_file(root, info, *row.data) for row in episodes}
        used |= {
            video_file(root, info, key, span.chunk, span.file)
            for row in episodes
            for key, span in row.videos.items()
        }
        if len(episodes):
            used |= set(committed_files(root, len(episodes)))
        return [path for path in self.paths(root, info) if path not in used]


def next_allocation(
    root: Path, info: Info, last: FileAllocation | None, sizes: Sequence[int]
) -> FileAllocation:
    """Return unused files for new episodes, numbered after those of ``last``.

    Args:
        sizes: the uncompressed bytes of each episode's rows. Data files are filled by these, so
            that the compressed ones stay below the limit.
    """

    def free(before: FileNumber | None, path_of: Callable[[int, int], Path]) -> FileNumber:
        place = (0, 0) if before is None else after(before, info.chunks_size)
        while path_of(*place).exists():
            place = after(place, info.chunks_size)
        return place

    def free_list(
        n: int, before: FileNumber | None, path_of: Callable[[int, int], Path]
    ) -> list[FileNumber]:
        places: list[FileNumber] = []
        for _ in range(n):
            places.append(free(places[-1] if places else before, path_of))
        return places

    n = len(sizes)
    groups = group_by_limit(zip(range(n), sizes, strict=True), info.data_files_size_in_mb * MB)
    before = last.data[-1] if last else None
    files = free_list(len(groups), before, partial(data_file, root, info))
    return FileAllocation(
        episode=info.total_episodes,
        data=[file for file, group in zip(files, groups, strict=True) for _ in group],
        episodes=free(last.episodes if last else None, partial(episodes_file, root)),
        videos={
            key: free_list(
                n, last.videos[key][-1] if last else None, partial(video_file, root, info, key)
            )
            for key in info.video_keys
        },
    )


def last_allocation(root: Path, info: Info, episodes: Episodes) -> FileAllocation | None:
    """Return the highest file numbers that episodes use, or None without episodes."""
    if not len(episodes):
        return None
    last = committed_files(root, len(episodes))[-1]
    return FileAllocation(
        episode=len(episodes) - 1,
        data=[_highest(episodes.data_chunk, episodes.data_file)],
        episodes=(int(last.parent.name.split("-")[1]), int(last.stem.split("-")[1])),
        videos={
            key: [_highest(episodes.videos[key].chunk, episodes.videos[key].file)]
            for key in info.video_keys
        },
    )


def after(place: FileNumber, chunks_size: int) -> FileNumber:
    """Return the file number after ``place``."""
    chunk, file = place
    return (chunk, file + 1) if file + 1 < chunks_size else (chunk + 1, 0)


def _highest(chunks: Array, files: Array) -> FileNumber:
    return max(zip(chunks.tolist(), files.tolist(), strict=True))


def committed_files(root: Path, n_episodes: int) -> list[Path]:
    """Return the files of the episodes table that hold the first ``n_episodes`` rows."""
    found, rows = [], 0
    for path in episode_files(root):
        if rows >= n_episodes:
            break
        found.append(path)
        rows += pq.read_metadata(path).num_rows
    return found
