"""Takes on their way into a dataset: in order, several at a time, while episodes go on.

A take is complete on the disk and the journal knows of it, so it may wait: put into the dataset
one by one, small episodes would cost the parent more time than all else that it does.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from proctor.callbacks.staged_episodes import RecordingOptions, explaining_write_errors
from proctor.types import EpisodeKey

if TYPE_CHECKING:
    from proctor.datasets.writer import DatasetWriter
    from proctor.datasets.writing.staged_episode import StagedEpisode

_MOST_TAKES, _MOST_BYTES = 32, 2**26
"""Of what goes into the dataset at once; the bytes are in memory then."""
_PATIENCE_S = 2.0


class AppendLog(Protocol):
    """Where it is written down which episode is the dataset's next."""

    def add(self, *keys: EpisodeKey) -> None:
        """Write down the next ones, before they are in the dataset."""


class Appender:
    """Puts takes into a dataset in the order they are given, in a thread of its own.

    A failure is raised once, at the next call; nothing goes into the dataset after it.
    """

    def __init__(self, writer: DatasetWriter, recording: RecordingOptions, book: AppendLog) -> None:
        self._writer, self._recording, self._book = writer, recording, book
        self._waiting: list[EpisodeKey] = []
        self._began_at = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "appending")
        self._going: Future[None] | None = None
        self._is_broken = False

    def put(self, key: EpisodeKey) -> None:
        """Let the take of an episode stand in line."""
        self._waiting.append(key)

    def go_on(self) -> None:
        """Begin with those that wait, where that is worth it: there are many, or it is long ago.

        Raises:
            RunFolderError: the disk is full or gone.
        """
        if self._going is not None and not self._going.done():
            return
        self._hear()
        late = time.monotonic() - self._began_at > _PATIENCE_S
        if len(self._waiting) >= _MOST_TAKES or (self._waiting and late):
            self._begin()

    def flush(self) -> None:
        """Wait until all that were put are in the dataset.

        Raises:
            RunFolderError: the disk is full or gone.
        """
        self._hear()
        while self._waiting and not self._is_broken:
            self._begin()
            self._hear()

    def rest(self) -> None:
        """Wait until nothing goes on; those that wait stay where they are."""
        self._thread.shutdown(wait=True)

    def _begin(self) -> None:
        if self._is_broken:  # an engine that ends still says what has ended: it waits, as takes do
            return
        keys, self._waiting = self._waiting, []
        self._began_at = time.monotonic()
        self._going = self._thread.submit(self._append, keys)

    def _hear(self) -> None:
        """Wait for what goes on, and raise what came of it."""
        going, self._going = self._going, None
        if going is None:
            return
        try:
            going.result()
        except BaseException:
            self._is_broken = True
            raise

    def _append(self, keys: list[EpisodeKey]) -> None:
        from proctor.datasets.writing.staged_episode import read_staged_episode

        group: list[tuple[EpisodeKey, StagedEpisode]] = []
        filled = 0
        with explaining_write_errors(self._recording.folder):
            for key in keys:
                take = read_staged_episode(self._recording.take_of(key))
                size = take.nbytes
                if group and (len(group) == _MOST_TAKES or filled + size > _MOST_BYTES):
                    self._append_group(group)
                    group, filled = [], 0
                group.append((key, take))
                filled += size
            self._append_group(group)

    def _append_group(self, group: list[tuple[EpisodeKey, StagedEpisode]]) -> None:
        self._book.add(*(key for key, _ in group))
        self._writer.append_all([take for _, take in group])
