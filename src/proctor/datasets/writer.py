"""Record a dataset: appending an episode is atomic, and durable when it returns.

Finished episodes have their own files until ``close`` compacts them into files of LeRobot's sizes.
The files of an episode are published in this order: videos, data, tasks, episodes table,
statistics, ``meta/info.json``. Readers see an episode only when info.json counts it. A kill in
between leaves files that readers ignore. ``.proctor/publishing.json`` lists them, and the next
``resume`` removes them.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from proctor.datasets.checks.uncounted import refuse_uncounted
from proctor.datasets.edit.compaction import compact
from proctor.datasets.edit.destination import remove_leftovers
from proctor.datasets.format.arrow import pa
from proctor.datasets.format.episodes import Episodes, read_episodes, write_episodes
from proctor.datasets.format.info import Info, data_file, video_file
from proctor.datasets.format.info_file import read_info, write_info
from proctor.datasets.format.tables import STATS_FILE, write_stats, write_table
from proctor.datasets.format.tasks import TASKS_FILE, read_tasks, write_tasks
from proctor.datasets.frames.encoder import Codec
from proctor.datasets.writing.episode_rows import (
    EpisodeRows,
    grown_info,
    refuse_other_features,
    rows_of_episodes,
    stack_numbers,
)
from proctor.datasets.writing.file_allocation import (
    FileAllocation,
    last_allocation,
    next_allocation,
)
from proctor.datasets.writing.frame import refuse_unwritable
from proctor.datasets.writing.layout import FileLayout, new_info, recorded_codec
from proctor.datasets.writing.linking import link_or_copy_all
from proctor.datasets.writing.staged_episode import StagedEpisode, StagedEpisodeWriter
from proctor.datasets.writing.staging import (
    StagingArea,
    has_content,
    lock_dataset,
    make_folders,
    unlock_dataset,
)
from proctor.datasets.writing.totals import read_totals
from proctor.errors import DatasetError, strip_control_codes
from proctor.system.files import recover_swap, require_utf8
from proctor.system.locks import Lock
from proctor.system.platform.platform_info import usable_cores

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def explaining_disk_errors(root: Path, kept: str) -> Iterator[None]:
    """Turn an OSError into a message with the reason and what is ``kept``."""
    try:
        yield
    except OSError as error:
        raise DatasetError(
            f"{root} cannot be written: {write_failure_reason(error)}; {kept}",
            code="disk.write-failed",
        ) from error


def write_failure_reason(error: OSError) -> str:
    """Return why a write failed; Arrow's errors hold the error number only in their text."""
    full = error.errno in _FULL or any(f"[errno {number}]" in str(error) for number in _FULL)
    return "no space left" if full else error.strerror or str(error)


_OPEN = "open"
_MAX_THREADS = 16
"""Data files that are written at the same time, each from memory; pyarrow releases the GIL."""


class DatasetWriter:
    """Records episodes into a dataset, whose lock it holds."""

    def __init__(self, root: Path, info: Info, codec: Codec, lock: Lock) -> None:
        """Use ``create`` or ``resume``."""
        self.root, self.info, self.codec = root, info, codec
        self._lock: Lock | None = lock
        self._staging = StagingArea(root)
        self._open: StagedEpisodeWriter | None = None
        self._tasks: tuple[str, ...] = ()
        self._last: FileAllocation | None = None
        self._before_last: Info | None = None
        """The info before the last append of this writer; None if that cannot be undone."""
        self._is_broken = False
        self._keeps_starts: bool | None = None
        """Whether the table of episodes has starts, as LeRobot reads tables of equal columns
        only; None: it is empty."""
        self._read()

    @classmethod
    def create(
        cls,
        root: Path,
        fps: int,
        features: Mapping[str, Mapping[str, Any]],
        codec: Codec | None = None,
        layout: FileLayout | None = None,
    ) -> DatasetWriter:
        """Create a dataset in ``root``, which must be empty or not exist.

        Args:
            features: entries of meta/info.json (``proctor.features.to_info``), without the default
                features such as ``frame_index``.
            codec: encoding of the videos; None takes LeRobot's AV1.
            layout: sizes of files and folders; None takes LeRobot's.
        """
        root, codec = root.resolve(), codec or Codec()
        require_utf8(root)
        if root.exists() and (not root.is_dir() or has_content(root)):
            raise DatasetError(
                f"{root} exists; choose another folder, or resume the dataset in it",
                code="dataset.exists",
            )
        info = new_info(fps, features, codec, layout or FileLayout())
        refuse_unwritable(info)
        with explaining_disk_errors(root, "nothing was recorded"):
            root.mkdir(parents=True, exist_ok=True)
            lock = lock_dataset(root)
            try:
                write_info(root, info)
                return cls(root, info, codec, lock)
            except BaseException:
                unlock_dataset(root, lock)
                raise

    @classmethod
    def resume(cls, root: Path, codec: Codec | None = None) -> DatasetWriter:
        """Continue the dataset in ``root``, after removing what a killed recorder left.

        Args:
            codec: encoding of new videos; None keeps the dataset's.
        """
        root = root.resolve()  # compaction replaces the folder, not a symbolic link to it
        recover_swap(root)
        info = read_info(root)
        if info.is_v2:
            raise DatasetError(
                f"{root} has version {info.version}: run `proctor data convert` first",
                code="dataset.old-version",
            )
        refuse_unwritable(info)
        with explaining_disk_errors(root, "it is unchanged"):
            lock = lock_dataset(root)
        try:
            with explaining_disk_errors(root, "it is unchanged"):
                StagingArea(root).clear()
                remove_leftovers(root)
                refuse_uncounted(root)
                return cls(root, read_info(root), codec or recorded_codec(info), lock)
        except BaseException:
            unlock_dataset(root, lock)
            raise

    @property
    def n_episodes(self) -> int:
        """Number of episodes in the dataset."""
        return self.info.total_episodes

    def new_take(self, name: str) -> Path:
        """Return a folder in which any process may record an episode for ``append``."""
        return self._staging.takes / name

    def add_frame(self, frame: Mapping[str, Any], task: str) -> None:
        """Add a frame to the open episode; the first frame opens one."""
        self._check_is_open()
        with self._keeping("the open episode is lost"):
            try:
                if self._open is None:
                    self._open = StagedEpisodeWriter(self.new_take(_OPEN), self.info, self.codec)
                self._open.add_frame(frame, task)
            except OSError:
                self.discard_episode()
                raise

    def end_episode(self) -> int:
        """Append the open episode to the dataset; return its number.

        When this returns, the episode is on the disk and visible to readers.
        """
        self._check_is_open()
        take, self._open = self._open, None
        if take is None:
            raise DatasetError("an episode needs at least one frame", code="dataset.empty-episode")
        with self._keeping("the open episode is lost"):
            try:
                return self._append([take.finish()])
            except BaseException:
                shutil.rmtree(self.new_take(_OPEN), ignore_errors=True)
                raise

    def discard_episode(self) -> None:
        """Remove the open episode, if there is one."""
        take, self._open = self._open, None
        if take is not None:
            take.discard()

    def remove_last_episode(self) -> None:
        """Remove the episodes of the last append; later ones get their numbers.

        A kill leaves the dataset with all of these episodes or with none.
        """
        self._check_is_open()
        before = self._before_last
        if before is None or self._last is None:
            raise DatasetError(
                f"{self.root}: this session has no last episode to remove",
                code="dataset.nothing-to-remove",
            )
        with self._keeping("the last one may be among them"):
            self._staging.intend(self._last)
            write_info(self.root, before)
            self._read()

    def append(self, take: StagedEpisode) -> int:
        """Move a staged episode into the dataset; return its number."""
        return self.append_all([take])

    def append_all(self, takes: Sequence[StagedEpisode]) -> int:
        """Move staged episodes into the dataset, all or none; return the first one's number.

        The cost is little more than that of one episode.
        """
        self._check_is_open()
        with self._keeping(f"{takes[0].folder} is not in it yet"):
            return self._append(takes)

    def close(self) -> str | None:
        """End the recording: compact the files, and release the lock.

        An open episode is discarded. Return why the files could not be compacted, or None; the
        dataset is complete in both cases.
        """
        if self._lock is None:
            return None
        try:
            self.discard_episode()
            return self._compacted()
        finally:
            self.release()

    def release(self) -> None:
        """Release the lock without compacting the files."""
        if self._lock is not None:
            self.discard_episode()
            self._staging.leave()
            unlock_dataset(self.root, self._lock)
            self._lock = None

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.release()

    def _append(self, takes: Sequence[StagedEpisode]) -> int:
        if self._is_broken:
            self._read()
        sizes = [take.nbytes for take in takes]
        places = next_allocation(self.root, self.info, self._last, sizes)
        refuse_other_features(takes, self.info)
        try:
            self._publish(takes, places)
        except BaseException:
            self._is_broken = True
            with contextlib.suppress(OSError):  # without space, the next writer repairs it
                self._read()
            raise
        for take in takes:
            take.remove()
        return places.episode

    def _publish(self, takes: Sequence[StagedEpisode], places: FileAllocation) -> None:
        """Write the files of episodes; the last one, info.json, makes them visible."""
        root, info = self.root, self.info
        make_folders(root, [*places.paths(root, info), root / TASKS_FILE])
        self._staging.intend(places)
        for key, films in places.videos.items():
            paths = [video_file(root, info, key, *place) for place in films]
            link_or_copy_all(zip((take.video(key) for take in takes), paths, strict=True))
        entries = self._write_data(takes, places)
        last = entries[-1]
        if len(last.tasks) > len(self._tasks):
            write_tasks(root, last.tasks)
        stats = [entry.stats for entry in entries]
        rows = [entry.row for entry in entries]
        keeps = self._keeps_starts
        starts = keeps if keeps is not None else any(row.start is not None for row in rows)
        write_episodes(root, rows, stats, *places.episodes, starts=starts)
        self._totals.add_all(stats, stack_numbers(entries), [entry.pixels for entry in entries])
        for entry in entries:
            for key, counts in entry.pixels.items():
                self._staging.write_levels(key, entry.row.index, counts)
        write_stats(root, self._totals.stats())
        now = grown_info(info, last)
        write_info(root, now)
        self._staging.forget()
        self.info, self._tasks, self._last = now, last.tasks, places
        self._keeps_starts = starts
        self._before_last = info

    def _write_data(
        self, takes: Sequence[StagedEpisode], places: FileAllocation
    ) -> list[EpisodeRows]:
        """Write the data files of episodes, several at a time; return the episodes' rows."""
        entries: list[EpisodeRows] = []
        writing: list[Future[None]] = []
        rows = rows_of_episodes(takes, self.info, self._tasks, places)
        with ThreadPoolExecutor(min(_MAX_THREADS, usable_cores())) as executor:
            for place, group in itertools.groupby(rows, lambda entry: entry.row.data):
                of_file = list(group)
                path = data_file(self.root, self.info, *place)
                tables = [entry.table for entry in of_file]
                writing.append(executor.submit(write_table, path, *tables))
                entries += of_file
        for file in writing:
            file.result()
        return entries

    def _read(self) -> None:
        """Read the dataset's state, and remove the files of a failed append."""
        self.info = read_info(self.root)
        episodes = read_episodes(self.root, self.info)
        self._totals = read_totals(self.root, self.info, episodes)
        self._tasks = read_tasks(self.root, self.info)[: self.info.total_tasks]
        self._keeps_starts = None if not len(episodes) else episodes.starts is not None
        self._undo(episodes)
        self._last = last_allocation(self.root, self.info, episodes)
        self._before_last = None
        self._is_broken = False

    def _undo(self, episodes: Episodes) -> None:
        """Remove the files of an append that did not finish."""
        places = self._staging.intended()
        if places is None:
            return
        if places.episode >= self.info.total_episodes:
            for path in places.unused(self.root, self.info, episodes):
                path.unlink(missing_ok=True)
            if self._tasks:
                write_tasks(self.root, self._tasks)
                write_stats(self.root, self._totals.stats())
            else:
                (self.root / TASKS_FILE).unlink(missing_ok=True)
                (self.root / STATS_FILE).unlink(missing_ok=True)
        self._staging.forget()

    def _compacted(self) -> str | None:
        assert self._lock is not None
        if self._is_broken:
            return "an episode could not be written; resume the dataset when there is disk space"
        try:
            self._lock = compact(self.root, self._lock)
        except OSError as error:
            return f"the files could not be compacted: {write_failure_reason(error)}"
        except (DatasetError, pa.ArrowException) as error:  # files of other tools
            return f"the files could not be compacted: {strip_control_codes(str(error), 200)}"
        return None

    def _check_is_open(self) -> None:
        if self._lock is None:
            raise DatasetError(
                f"{self.root} is closed; resume it to record more", code="dataset.closed"
            )

    def _keeping(self, lost: str) -> contextlib.AbstractContextManager[None]:
        """Return a context that explains write errors: what is kept, and what is lost."""
        n = self.info.total_episodes
        return explaining_disk_errors(
            self.root, f"{n} finished episode{'' if n == 1 else 's'} kept, {lost}"
        )
