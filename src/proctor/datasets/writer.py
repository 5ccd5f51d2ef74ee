"""Recording a dataset: an episode is in it, complete and on the disk, or it is not there at all.

Finished episodes have files of their own until ``close`` puts them together in files of LeRobot's
sizes. They come in the order in which a reader can do without the later ones: videos,
frames, tasks, the episodes' rows, statistics, and last ``meta/info.json``, whose totals say what
there is. A kill in between leaves files that no reader looks at; ``.proctor/publishing.json`` says
which, and the next ``resume`` removes them.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from proctor.datasets.edit.compaction import compact
from proctor.datasets.edit.destination import remove_leftovers
from proctor.datasets.format.arrow import pa
from proctor.datasets.format.episodes import Episodes, read_episodes, write_episodes
from proctor.datasets.format.info import Info, data_file, video_file
from proctor.datasets.format.info_file import read_info, write_info
from proctor.datasets.format.tables import STATS_FILE, write_stats, write_table
from proctor.datasets.format.tasks import TASKS_FILE, read_tasks, write_tasks
from proctor.datasets.frames.encoder import Codec
from proctor.datasets.writing.disk_errors import explaining_disk_errors, write_failure_reason
from proctor.datasets.writing.episode_rows import (
    EpisodeRows,
    grown_info,
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
from proctor.system.files import recover_swap
from proctor.system.locks import Lock

_OPEN = "open"


class DatasetWriter:
    """A dataset that is being recorded, and nobody else writes."""

    def __init__(self, root: Path, info: Info, codec: Codec, lock: Lock) -> None:
        """Use ``create`` or ``resume``."""
        self.root, self.info, self.codec = root, info, codec
        self._lock: Lock | None = lock
        self._workshop = StagingArea(root)
        self._open: StagedEpisodeWriter | None = None
        self._tasks: tuple[str, ...] = ()
        self._last: FileAllocation | None = None
        self._is_broken = False
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
        """Begin a dataset in ``root``, which must not exist or be empty.

        Args:
            features: as meta/info.json states them (``proctor.features.to_info``), without those
                that count frames.
            codec: how videos are encoded; LeRobot's AV1 unless said.

        Raises:
            DatasetError: the folder exists, cannot be written, or a feature cannot be recorded.
        """
        root, codec = root.resolve(), codec or Codec()
        if root.exists() and (not root.is_dir() or has_content(root)):
            raise DatasetError(
                f"{root} exists; choose another folder, or resume what is in it",
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
        """Go on with the dataset in ``root``; what a kill left of an episode is removed.

        Args:
            codec: how videos are encoded from now on; as until now unless said.

        Raises:
            DatasetError: there is none, another process writes it, or it cannot be gone on with.
        """
        root = root.resolve()  # a link stays one: what it leads to is replaced, where it lies
        recover_swap(root)
        info = read_info(root)
        if info.is_v2:
            raise DatasetError(
                f"{root} is of version {info.version}: run `proctor data convert` first",
                code="dataset.old-version",
            )
        refuse_unwritable(info)
        with explaining_disk_errors(root, "it is as it was"):
            lock = lock_dataset(root)
        try:
            with explaining_disk_errors(root, "it is as it was"):
                StagingArea(root).clear()
                remove_leftovers(root)
                return cls(root, read_info(root), codec or recorded_codec(info), lock)
        except BaseException:
            unlock_dataset(root, lock)
            raise

    @property
    def n_episodes(self) -> int:
        """Episodes that are in the dataset."""
        return self.info.total_episodes

    def new_take(self, name: str) -> Path:
        """Return a folder where a take may be recorded, by anybody; ``append`` puts it in."""
        return self._workshop.takes / name

    def add_frame(self, frame: Mapping[str, Any], task: str) -> None:
        """Add a frame to the episode that is being recorded; the first one begins it.

        Raises:
            DatasetError: it is not what the features say, and the episode is as if it had not come;
                or the disk did not take it, and the episode is lost.
        """
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
        """Put the episode that was recorded into the dataset; return its number.

        Once this returns it is on the disk, for every reader.

        Raises:
            DatasetError: it has no frame, or the disk did not take it, and the episode is lost.
        """
        self._check_is_open()
        take, self._open = self._open, None
        if take is None:
            raise DatasetError("an episode needs one frame at least", code="dataset.empty-episode")
        with self._keeping("the open episode is lost"):
            try:
                return self._append([take.finish()])
            except BaseException:
                shutil.rmtree(self.new_take(_OPEN), ignore_errors=True)
                raise

    def discard_episode(self) -> None:
        """Leave nothing of the episode that was being recorded; it may have none."""
        take, self._open = self._open, None
        if take is not None:
            take.discard()

    def append(self, take: StagedEpisode) -> int:
        """Put a finished take into the dataset and remove it; return the episode's number."""
        return self.append_all([take])

    def append_all(self, takes: Sequence[StagedEpisode]) -> int:
        """Put takes into the dataset, all or none, and remove them; return the first's number.

        It costs little more than one of them does.

        Raises:
            DatasetError: one has other features, or the disk did not take it: then the dataset is
                as it was, and so are the takes.
        """
        self._check_is_open()
        with self._keeping(f"{takes[0].folder} is not in it yet"):
            return self._append(takes)

    def close(self) -> str | None:
        """End the recording: put episodes together in files of LeRobot's sizes, let others in.

        An episode that was not ended is no part of it. Return why the files were left as they are,
        where they were; the dataset is as good.
        """
        if self._lock is None:
            return None
        try:
            self.discard_episode()
            return self._compacted()
        finally:
            self.release()

    def release(self) -> None:
        """Let others in and leave the files as they are; for when there is no time."""
        if self._lock is not None:
            self.discard_episode()
            self._workshop.leave()
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
        places = next_allocation(self.root, self.info, self._last, len(takes))
        entries = rows_of_episodes(takes, self.info, self._tasks, places)
        try:
            self._publish(takes, entries, places)
        except BaseException:
            self._is_broken = True
            with contextlib.suppress(OSError):  # no space to mend it now: whoever writes next does
                self._read()
            raise
        for take in takes:
            take.remove()
        return entries[0].row.index

    def _publish(
        self, takes: Sequence[StagedEpisode], entries: Sequence[EpisodeRows], places: FileAllocation
    ) -> None:
        """Put the files of episodes in place; info.json, the last, makes them some."""
        root, info = self.root, self.info
        make_folders(root, [*places.paths(root, info), root / TASKS_FILE])
        self._workshop.intend(places)
        for key, films in places.videos.items():
            paths = [video_file(root, info, key, *place) for place in films]
            link_or_copy_all(zip((take.video(key) for take in takes), paths, strict=True))
        write_table(data_file(root, info, *places.data), *(entry.table for entry in entries))
        last = entries[-1]
        if len(last.tasks) > len(self._tasks):
            write_tasks(root, last.tasks)
        stats = [entry.stats for entry in entries]
        write_episodes(root, [entry.row for entry in entries], stats, *places.episodes)
        self._totals.add_all(stats, stack_numbers(entries), [entry.pixels for entry in entries])
        for entry in entries:
            for key, counts in entry.pixels.items():
                self._workshop.write_levels(key, entry.row.index, counts)
        write_stats(root, self._totals.stats())
        now = grown_info(info, last)
        write_info(root, now)
        self._workshop.forget()
        self.info, self._tasks, self._last = now, last.tasks, places

    def _read(self) -> None:
        """Learn what is on disk, and remove what is no part of it."""
        self.info = read_info(self.root)
        episodes = read_episodes(self.root, self.info)
        self._totals = read_totals(self.root, self.info, episodes)
        self._tasks = read_tasks(self.root, self.info)[: self.info.total_tasks]
        self._undo(episodes)
        self._last = last_allocation(self.root, self.info, episodes)
        self._is_broken = False

    def _undo(self, episodes: Episodes) -> None:
        """Remove an episode that was on its way in."""
        places = self._workshop.intended()
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
        self._workshop.forget()

    def _compacted(self) -> str | None:
        assert self._lock is not None
        if self._is_broken:
            return "an episode did not fit on the disk; resume it when there is room"
        try:
            self._lock = compact(self.root, self._lock)
        except OSError as error:
            return f"they could not be put together: {write_failure_reason(error)}"
        except (DatasetError, pa.ArrowException) as error:  # of files that others wrote
            return f"they could not be put together: {strip_control_codes(str(error), 200)}"
        return None

    def _check_is_open(self) -> None:
        if self._lock is None:
            raise DatasetError(f"{self.root} was closed; resume it to go on", code="dataset.closed")

    def _keeping(self, lost: str) -> contextlib.AbstractContextManager[None]:
        """Return what says of a disk that is full which episodes are kept, and what is not."""
        n = self.info.total_episodes
        return explaining_disk_errors(
            self.root, f"{n} finished episode{'' if n == 1 else 's'} kept, {lost}"
        )
