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

_MAX_EPISODES, _MAX_BYTES = 32, 2**26
"""Of what goes into the dataset at once; the bytes are in memory then."""
_MAX_WAIT_S = 2.0


class AppendLog(Protocol):
    """Where it is written down which episode is the dataset's next."""

    def add(self, *keys: EpisodeKey) -> None:
        """Write down the next ones, before they are in the dataset."""


class Appender:
    """Puts takes into a dataset in the order they are given, in a thread of its own.

    A failure is raised once, at the next call; nothing goes into the dataset after it.
    """

    def __init__(self, writer: DatasetWriter, recording: RecordingOptions, log: AppendLog) -> None:
        self._writer, self._recording, self._log = writer, recording, log
        self._queue: list[EpisodeKey] = []
        self._began_at = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "appending")
        self._running: Future[None] | None = None
        self._is_broken = False

    def enqueue(self, key: EpisodeKey) -> None:
        """Let the take of an episode stand in line."""
        self._queue.append(key)

    def append_if_due(self) -> None:
        """Begin with those that wait, where that is worth it: there are many, or it is long ago.

        Raises:
            RunFolderError: the disk is full or gone.
        """
        if self._running is not None and not self._running.done():
            return
        self._wait()
        late = time.monotonic() - self._began_at > _MAX_WAIT_S
        if len(self._queue) >= _MAX_EPISODES or (self._queue and late):
            self._start()

    def flush(self) -> None:
        """Wait until all that were put are in the dataset.

        Raises:
            RunFolderError: the disk is full or gone.
        """
        self._wait()
        while self._queue and not self._is_broken:
            self._start()
            self._wait()

    def stop(self) -> None:
        """Wait until nothing goes on; those that wait stay where they are."""
        self._thread.shutdown(wait=True)

    def _start(self) -> None:
        if self._is_broken:  # an engine that ends still says what has ended: it waits, as takes do
            return
        keys, self._queue = self._queue, []
        self._began_at = time.monotonic()
        self._running = self._thread.submit(self._append, keys)

    def _wait(self) -> None:
        """Wait for what goes on, and raise what came of it."""
        running, self._running = self._running, None
        if running is None:
            return
        try:
            running.result()
        except BaseException:
            self._is_broken = True
            raise

    def _append(self, keys: list[EpisodeKey]) -> None:
        from proctor.datasets.writing.staged_episode import read_staged_episode

        group: list[tuple[EpisodeKey, StagedEpisode]] = []
        filled = 0
        with explaining_write_errors(self._recording.folder):
            for key in keys:
                episode = read_staged_episode(self._recording.staging_folder(key))
                size = episode.nbytes
                if group and (len(group) == _MAX_EPISODES or filled + size > _MAX_BYTES):
                    self._append_group(group)
                    group, filled = [], 0
                group.append((key, episode))
                filled += size
            self._append_group(group)

    def _append_group(self, group: list[tuple[EpisodeKey, StagedEpisode]]) -> None:
        self._log.add(*(key for key, _ in group))
        self._writer.append_all([episode for _, episode in group])
