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

import pyarrow as pa
import pyarrow.parquet as pq

from proctor.datasets.format.episodes import EpisodeMetadata, read_episodes
from proctor.datasets.format.info import (
    INFO_FILE,
    Info,
    data_file,
    episode_files,
    episodes_file,
    video_file,
)
from proctor.datasets.format.info_file import read_info, write_info
from proctor.datasets.format.tables import write_table
from proctor.datasets.frames.packets import DifferentStreams, concatenate
from proctor.datasets.writing.file_allocation import (
    FileNumber,
    committed_files,
    file_number,
    group_by_limit,
)
from proctor.datasets.writing.staging import WORKSHOP, lock_dataset
from proctor.errors import DatasetError
from proctor.system.files import UNFINISHED, publish, swap, sync_folder
from proctor.system.locks import CLAIM_FILE, LOCK_FILE, Lock

_MB = 2**20
_NOT_LINKED = ("data", "videos", LOCK_FILE, CLAIM_FILE)


@dataclass(frozen=True)
class FileSizeLimits:
    """Bytes that files may have before the next episode goes into a new one."""

    data: int
    video: int

    @classmethod
    def of(cls, info: Info) -> FileSizeLimits:
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

    rows: list[EpisodeMetadata]

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


def compact(root: Path, limits: FileSizeLimits, lock: Lock) -> Lock:
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
            _join_tables(beside, info, file_number(info, number), group, made)
        for key, groups in videos.items():
            _join_videos(beside, info, key, groups, made)
        table = _episode_table(root, len(rows))
        _write_episode_tables(beside, info, table, made.rows, limits.data)
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


def link_or_copy_all(paths: Iterable[tuple[Path, Path]]) -> None:
    """Put each file at a second place too; once this returns a power cut leaves it there."""
    folders = set()
    for path, into in paths:
        take_over(path, into)
        folders.add(into.parent)
    for folder in folders:
        sync_folder(folder)


def take_over(path: Path, into: Path) -> None:
    """Put a file at ``into`` too: linked where it can be, else copied.

    What is in it is on the disk; its name is once somebody has called ``sync_folder``.
    """
    try:
        os.link(path, into)
    except FileExistsError:
        raise
    except OSError:  # another file system, or one that knows no links
        unfinished = into.with_name(into.name + UNFINISHED)
        shutil.copyfile(path, unfinished)
        publish(unfinished, into)


def _beside(root: Path) -> Path:
    return root.with_name(f".{root.name}.compacted")


def _place_of(key: str) -> Callable[[EpisodeMetadata], FileNumber]:
    return lambda row: (row.videos[key].chunk, row.videos[key].file)


def _files(
    rows: Sequence[EpisodeMetadata],
    place_of: Callable[[EpisodeMetadata], FileNumber],
    path_of: Callable[[int, int], Path],
) -> Iterator[_File]:
    """Yield the files that episodes lie in, in the order of the episodes.

    Raises:
        DatasetError: those of a file do not follow one another, as ours and LeRobot's do.
    """
    seen: set[FileNumber] = set()
    for place, members in groupby(rows, key=place_of):
        if place in seen:
            raise DatasetError(f"{path_of(*place)}: its episodes do not follow one another")
        seen.add(place)
        numbers = [row.index for row in members]
        yield _File(path_of(*place), numbers[0], numbers[-1] + 1)


def _groups(files: Iterable[_File], most_bytes: int) -> list[list[_File]]:
    """Return which files become one: neighbours, as many as stay below the limit together."""
    return group_by_limit(((file, file.path.stat().st_size) for file in files), most_bytes)


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
        place = file_number(info, number)
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
    root: Path, info: Info, table: pa.Table, rows: Sequence[EpisodeMetadata], most_bytes: int
) -> None:
    """Write all episodes as one table, or as many as keep each below the limit."""
    table = _moved(table, rows)
    size, n_files = 0, 1
    while True:
        ends = [len(rows) * i // n_files for i in range(n_files + 1)]
        for number, (start, stop) in enumerate(pairwise(ends)):
            place = file_number(info, number)
            path = episodes_file(root, *place)
            write_table(path, _placed(table[start:stop], place))
            size = max(size, path.stat().st_size)
        more = min(size // most_bytes + 1, len(rows))
        if n_files > 1 or more == 1:
            return
        n_files = more


def _moved(table: pa.Table, rows: Sequence[EpisodeMetadata]) -> pa.Table:
    """Return a table of episodes that says where their frames lie now; all else is as it was."""
    table = _with(table, "data/chunk_index", [row.data[0] for row in rows])
    table = _with(table, "data/file_index", [row.data[1] for row in rows])
    for key in rows[0].videos:
        spans = [row.videos[key] for row in rows]
        table = _with(table, f"videos/{key}/chunk_index", [span.chunk for span in spans])
        table = _with(table, f"videos/{key}/file_index", [span.file for span in spans])
        table = _with(table, f"videos/{key}/from_timestamp", [span.from_s for span in spans])
        table = _with(table, f"videos/{key}/to_timestamp", [span.to_s for span in spans])
    return table


def _placed(table: pa.Table, place: FileNumber) -> pa.Table:
    table = _with(table, "meta/episodes/chunk_index", [place[0]] * len(table))
    return _with(table, "meta/episodes/file_index", [place[1]] * len(table))


def _with(table: pa.Table, name: str, values: Sequence[int] | Sequence[float]) -> pa.Table:
    if name not in table.column_names:  # of tables that others wrote, those of meta/ may be missing
        return table
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def _episode_table(root: Path, n_episodes: int) -> pa.Table:
    tables = [pq.ParquetFile(path).read() for path in committed_files(root, n_episodes)]
    return pa.concat_tables(tables, promote_options="permissive")[:n_episodes].combine_chunks()


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
