"""Detect that a dataset was edited while it is read.

Metadata, data files and videos are read at different times. An edit in place replaces the dataset's
folder, and other tools rewrite files in place. Files read before and after such an edit do not
match. Appending and compacting are allowed, as long as the episodes that are read stay the same and
stay in the same files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proctor.datasets.format.episodes import Episodes, read_episodes
from proctor.datasets.format.info import INFO_FILE, Info, episode_files
from proctor.datasets.format.info_file import read_info
from proctor.datasets.format.tasks import (
    OLD_TASKS_FILE,
    SUBTASKS_FILE,
    TASKS_FILE,
    read_subtasks,
    read_tasks,
)
from proctor.errors import DatasetError
from proctor.features import Array
from proctor.system.files import FileStamp, file_stamp

_TEXTS = (TASKS_FILE, OLD_TASKS_FILE, SUBTASKS_FILE)


@dataclass(frozen=True)
class Metadata:
    """The contents of a dataset's metadata files, without the statistics."""

    info: Info
    episodes: Episodes
    tasks: tuple[str, ...]
    subtasks: tuple[str, ...] | None


def read_metadata(root: Path) -> Metadata:
    """Read the metadata of the dataset in ``root``."""
    info = read_info(root)
    return Metadata(
        info, read_episodes(root, info), read_tasks(root, info), read_subtasks(root, info)
    )


@dataclass(frozen=True)
class MetadataStamp:
    """The stamps of a dataset's folder and of its metadata files."""

    folder: tuple[int, int] | None
    """Device and inode."""
    info: FileStamp | None
    others: tuple[tuple[Path, FileStamp | None], ...]

    @classmethod
    def of(cls, root: Path) -> MetadataStamp:
        """Return the stamps of the dataset in ``root`` as it is now."""
        files = [*(root / name for name in _TEXTS), *episode_files(root)]
        return cls(*_quick_stamps(root), tuple((file, file_stamp(file)) for file in files))

    def is_current(self, root: Path, *, quick: bool = False) -> bool:
        """Tell whether no file changed since; ``quick`` checks the folder and info.json only."""
        if quick:
            return (self.folder, self.info) == _quick_stamps(root)
        return self == MetadataStamp.of(root)


def _quick_stamps(root: Path) -> tuple[tuple[int, int] | None, FileStamp | None]:
    folder = file_stamp(root)
    return (None if folder is None else folder[:2]), file_stamp(root / INFO_FILE)


class StalenessGuard:
    """Compares a dataset's files with those that its metadata were read from.

    It can be pickled: other processes compare with the same files.
    """

    def __init__(
        self,
        root: Path,
        known: Metadata,
        stamp: MetadataStamp,
        chosen: Array,
        tables: Iterable[Path] = (),
    ) -> None:
        """Start with metadata that were read after ``stamp`` was taken.

        ``chosen`` are the episodes that are read, from the data files ``tables``.
        """
        self._root, self._known, self._stamp, self._chosen = root, known, stamp, chosen
        self._tables = {path: file_stamp(path) for path in tables}

    def check(self, *, quick: bool = False) -> None:
        """Check that the files read so far belong together; call it after reading.

        ``quick`` is for frequent calls: it checks only meta/info.json.
        """
        if not self._stamp.is_current(self._root, quick=quick):
            self._compare_contents()
        elif not quick and any(file_stamp(p) != found for p, found in self._tables.items()):
            raise self._edited()

    def _compare_contents(self) -> None:
        """Accept a changed dataset that has the same episodes in the same files."""
        stamp = MetadataStamp.of(self._root)
        tables = {path: file_stamp(path) for path in self._tables}
        try:
            now = read_metadata(self._root)
        except DatasetError:
            raise self._edited() from None
        if not _has_same_episodes(self._known, now, self._chosen):
            raise self._edited()
        self._stamp, self._tables = stamp, tables

    def _edited(self) -> DatasetError:
        return DatasetError(
            f"{self._root} was edited while it was read: open it again", code="dataset.changed"
        )


def _has_same_episodes(was: Metadata, now: Metadata, chosen: Array) -> bool:
    """Tell whether the ``chosen`` episodes have the same contents and file locations."""
    formats = [(m.info.version, m.info.fps, m.info.features) for m in (was, now)]
    if formats[0] != formats[1] or len(now.episodes) <= chosen.max(initial=-1):
        return False
    return (
        _has_same_words(was, now, chosen)
        and _has_same_places(was.episodes, now.episodes, chosen)
        and _has_same_ranges(was.episodes, now.episodes, chosen)
    )


def _has_same_words(was: Metadata, now: Metadata, chosen: Array) -> bool:
    """Tell whether the task and subtask numbers of the chosen episodes stand for the same texts."""
    if was.subtasks is not None and now.subtasks != was.subtasks:
        return False
    said: set[str] = set()
    for episode in chosen.tolist():
        texts = was.episodes.tasks[episode]
        if now.episodes.tasks[episode] != texts:
            return False
        said.update(texts or was.tasks)  # without its own tasks, an episode may have any task
    numbers = {text: number for number, text in enumerate(was.tasks) if text in said}
    return all(now.tasks[number : number + 1] == (text,) for text, number in numbers.items())


def _has_same_places(was: Episodes, now: Episodes, chosen: Array) -> bool:
    plain = ("length", "data_chunk", "data_file")
    if not all(np.array_equal(getattr(was, n)[chosen], getattr(now, n)[chosen]) for n in plain):
        return False
    return was.videos.keys() <= now.videos.keys() and all(
        np.array_equal(getattr(spans, name)[chosen], getattr(now.videos[key], name)[chosen])
        for key, spans in was.videos.items()
        for name in ("chunk", "file", "from_s")
    )


def _has_same_ranges(was: Episodes, now: Episodes, chosen: Array) -> bool:
    """Tell whether the ranges of the chosen episodes' actions and states are the same."""
    return was.ranges.keys() == now.ranges.keys() and all(
        np.array_equal(rows[chosen], now.ranges[name][chosen], equal_nan=True)
        for name, rows in was.ranges.items()
    )
