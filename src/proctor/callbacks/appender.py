"""Append staged episodes to a dataset in order, several at a time, while the run continues.

A staged episode is complete on disk and listed in the journal, so it can wait. Appending small
episodes one by one would cost the engine's process more time than its other work.
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

_MAX_EPISODES, _MAX_BYTES = 256, 2**30
"""Limits of one append, which writes several data files at the same time."""
_DUE_EPISODES, _MAX_WAIT_S = 32, 2.0
"""When queued episodes are appended: as soon as there are so many, or after so long."""


class AppendLog(Protocol):
    """A log of the episodes that are appended to the dataset, in order."""

    def add(self, *keys: EpisodeKey) -> None:
        """Log the next episodes, before they are in the dataset."""


class Appender:
    """Appends staged episodes to a dataset in the order they are enqueued, in its own thread.

    A failure is raised once, by the next call. Nothing is appended after a failure.
    """

    def __init__(self, writer: DatasetWriter, recording: RecordingOptions, log: AppendLog) -> None:
        self._writer, self._recording, self._log = writer, recording, log
        self._queue: list[EpisodeKey] = []
        self._began_at = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "appending")
        self._running: Future[None] | None = None
        self._is_broken = False

    def enqueue(self, key: EpisodeKey) -> None:
        """Queue the staged episode of ``key``."""
        self._queue.append(key)

    def append_if_due(self) -> None:
        """Append the queued episodes if there are many, or if the last append was long ago."""
        if self._running is not None and not self._running.done():
            return
        self._wait()
        late = time.monotonic() - self._began_at > _MAX_WAIT_S
        if len(self._queue) >= _DUE_EPISODES or (self._queue and late):
            self._start()

    def flush(self) -> None:
        """Append all queued episodes and wait for them."""
        self._wait()
        while self._queue and not self._is_broken:
            self._start()
            self._wait()

    def stop(self) -> None:
        """Wait for the append in progress; episodes in the queue stay staged."""
        self._thread.shutdown(wait=True)

    def _start(self) -> None:
        if self._is_broken:  # an engine that stops still reports episodes: they stay staged
            return
        keys, self._queue = self._queue, []
        self._began_at = time.monotonic()
        self._running = self._thread.submit(self._append, keys)

    def _wait(self) -> None:
        """Wait for the append in progress and raise its error."""
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
