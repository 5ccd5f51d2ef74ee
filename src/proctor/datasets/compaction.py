"""Small files put together in files of LeRobot's sizes.

The new files are made in a folder beside the dataset, which then takes its place in one step:
whoever looks, and whoever comes after a kill, finds one of the two whole. Files that stay as they
are are linked, so that only what is put together is written again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path

import pyarrow.parquet as pq

from proctor.datasets.episode_stats import read_episode_stats
from proctor.datasets.episodes import EpisodeRow, read_episodes, write_episodes
from proctor.datasets.info import (
    INFO_FILE,
    Info,
    data_file,
    episode_files,
    episodes_file,
    video_file,
)
from proctor.datasets.info_file import read_info, write_info
from proctor.datasets.packets import DifferentStreams, concatenate
from proctor.datasets.places import FileNumber
from proctor.datasets.statistics import Stats
from proctor.datasets.workshop import WORKSHOP, lock_dataset
from proctor.machine.files import UNFINISHED, publish, swap, sync_folder
from proctor.machine.locks import CLAIM_FILE, LOCK_FILE, Lock

_MB = 2**20
_NOT_LINKED = ("data", "videos", LOCK_FILE, CLAIM_FILE)


@dataclass(frozen=True)
class Limits:
    """Bytes that files may have before the next episode goes into a new one."""

    data: int
    video: int

    @classmethod
    def of(cls, info: Info) -> Limits:
        """Return those that a dataset states."""
        return cls(info.data_files_size_in_mb * _MB, info.video_files_size_in_mb * _MB)


@dataclass(frozen=True)
class _File:
    """A file and the episodes [start, stop) that lie in it."""

    path: Path
    start: int
    stop: int


@dataclass
class _Made:
    """What the new folder's table of episodes will say."""

    rows: list[EpisodeRow]

    def move_data(self, file: _File, place: FileNumber) -> None:
        for i in range(file.start, file.stop):
            self.rows[i] = replace(self.rows[i], data=place)

    def move_video(self, key: str, file: _File, place: FileNumber, begin_s: float) -> None:
        for i in range(file.start, file.stop):
            old = self.rows[i].videos[key]
            chunk, number = place
            span = replace(
                old,
                chunk=chunk,
                file=number,
                from_s=old.from_s + begin_s,
                to_s=old.to_s + begin_s,
            )
            self.rows[i] = replace(self.rows[i], videos=self.rows[i].videos | {key: span})


def compact(root: Path, limits: Limits, lock: Lock) -> Lock:
    """Put the small files of the dataset in ``root`` together; return the lock that then holds.

    Args:
        lock: that of ``root``, held by the caller.

    Raises:
        OSError: there is no room, or no right to write beside it; it is as it was.
        DatasetError: a file of it is damaged; it is as it was.
    """
    info = read_info(root)
    rows = list(read_episodes(root, info))
    tables = _files(rows, lambda row: row.data, partial(data_file, root, info))
    data = _groups(tables, limits.data)
    videos: dict[str, list[list[_File]]] = {}
    for key in info.video_keys:
        films = _files(rows, _place_of(key), partial(video_file, root, info, key))
        videos[key] = _groups(films, limits.video)
    many = [group for groups in (data, *videos.values()) for group in groups if len(group) > 1]
    if not many and len(episode_files(root)) < 2:
        return lock
    made = _Made(rows)
    beside = _beside(root)
    remove_leftovers(root)
    beside.mkdir()
    new_lock = lock_dataset(beside)
    try:
        _link_the_rest(root, beside)
        for number, group in enumerate(data):
            _join_tables(beside, info, _numbered(number, info), group, made)
        for key, groups in videos.items():
            _join_videos(beside, info, key, groups, made)
        _write_episode_tables(beside, info, made.rows, read_episode_stats(root, info), limits.data)
        write_info(beside, info)
        _sync_folders(beside)
        swap(root, beside)
    except BaseException:
        new_lock.release()
        shutil.rmtree(beside, ignore_errors=True)
        raise
    lock.release()
    shutil.rmtree(beside, ignore_errors=True)  # what is left of the old one, resume removes
    return new_lock


def remove_leftovers(root: Path) -> None:
    """Remove what a kill left beside a dataset that was being put together."""
    shutil.rmtree(_beside(root), ignore_errors=True)


def take_over(path: Path, into: Path) -> None:
    """Put a file at ``into`` too: linked where it can be, else copied; on the disk either way."""
    try:
        os.link(path, into)
    except FileExistsError:
        raise
    except OSError:  # another file system, or one that knows no links
        unfinished = into.with_name(into.name + UNFINISHED)
        shutil.copyfile(path, unfinished)
        publish(unfinished, into)
    else:
        sync_folder(into.parent)


def _beside(root: Path) -> Path:
    return root.with_name(f".{root.name}.compacted")


def _place_of(key: str) -> Callable[[EpisodeRow], FileNumber]:
    return lambda row: (row.videos[key].chunk, row.videos[key].file)


def _files(
    rows: Sequence[EpisodeRow],
    place_of: Callable[[EpisodeRow], FileNumber],
    path_of: Callable[[int, int], Path],
) -> Iterator[_File]:
    """Yield the files that episodes lie in, in the order of the episodes."""
    for place, members in groupby(rows, key=place_of):
        numbers = [row.index for row in members]
        yield _File(path_of(*place), numbers[0], numbers[-1] + 1)


def _groups(files: Iterable[_File], most_bytes: int) -> list[list[_File]]:
    """Return which files become one: neighbours, as many as stay below the limit together."""
    groups: list[list[_File]] = []
    size = 0
    for file in files:
        more = file.path.stat().st_size
        if groups and size + more < most_bytes:
            groups[-1].append(file)
            size += more
        else:
            groups.append([file])
            size = more
    return groups


def _numbered(number: int, info: Info) -> FileNumber:
    return number // info.chunks_size, number % info.chunks_size


def _join_tables(
    root: Path, info: Info, place: FileNumber, group: Sequence[_File], made: _Made
) -> None:
    """Write the tables of a group as one, row group by row group: each episode keeps its own."""
    into = data_file(root, info, *place)
    into.parent.mkdir(parents=True, exist_ok=True)
    for file in group:
        made.move_data(file, place)
    if len(group) == 1:
        take_over(group[0].path, into)
        return
    unfinished = into.with_name(into.name + UNFINISHED)
    schema = pq.read_schema(group[0].path)
    with pq.ParquetWriter(unfinished, schema, compression="snappy") as writer:
        for file in group:
            table = pq.ParquetFile(file.path)
            for i in range(table.num_row_groups):
                writer.write_table(table.read_row_group(i).cast(schema))
    publish(unfinished, into)


def _join_videos(
    root: Path, info: Info, key: str, groups: Sequence[Sequence[_File]], made: _Made
) -> None:
    """Write the videos of each group as one, by copying packets; those encoded otherwise alone."""
    number = 0
    waiting = list(groups)
    while waiting:
        group = waiting.pop(0)
        place = _numbered(number, info)
        into = video_file(root, info, key, *place)
        into.parent.mkdir(parents=True, exist_ok=True)
        begins = [0.0]
        if len(group) == 1:
            take_over(group[0].path, into)
        else:
            try:
                begins = [begin for begin, _ in concatenate([file.path for file in group], into)]
            except DifferentStreams:
                waiting[:0] = [[file] for file in group]
                continue
        for file, begin in zip(group, begins, strict=True):
            made.move_video(key, file, place, begin)
        number += 1


def _write_episode_tables(
    root: Path, info: Info, rows: Sequence[EpisodeRow], stats: Sequence[Stats], most_bytes: int
) -> None:
    """Write all episodes as one table, or as many as keep each below the limit."""
    write_episodes(root, rows, stats, 0, 0)
    first = episodes_file(root, 0, 0)
    n_files = min(first.stat().st_size // most_bytes + 1, len(rows))
    if n_files == 1:
        return
    first.unlink()
    ends = [len(rows) * i // n_files for i in range(n_files + 1)]
    for number, (start, stop) in enumerate(pairwise(ends)):
        write_episodes(root, rows[start:stop], stats[start:stop], *_numbered(number, info))


def _link_the_rest(root: Path, into: Path) -> None:
    """Take over what is not made anew: tasks, statistics, the card, files of others."""
    made_anew = {root / name for name in _NOT_LINKED} | {
        root / INFO_FILE,
        root / "meta/episodes",
        root / WORKSHOP / "takes",
    }
    folders = [root]
    while folders:
        for path in folders.pop().iterdir():
            target = into / path.relative_to(root)
            if path in made_anew:
                continue
            if path.is_symlink():
                target.symlink_to(path.readlink())
            elif path.is_dir():
                target.mkdir()
                folders.append(path)
            else:
                take_over(path, target)


def _sync_folders(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            sync_folder(path)
