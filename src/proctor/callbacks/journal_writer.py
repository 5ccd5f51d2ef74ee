"""What a run keeps on disk as it goes: its journal, and what each session cost the policy."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from proctor.callbacks.base import Callback
from proctor.errors import RunFolderError, WriteFailed
from proctor.runs.effort import SESSIONS_FILE
from proctor.runs.journal import JOURNAL_FILE, row_of
from proctor.runs.records import RunProgress
from proctor.system.files import sync
from proctor.types import EpisodeResult

_SYNC_EVERY_S = 1.0


class JournalWriter(Callback):
    """Appends finished episodes to ``episodes.jsonl``, one whole line at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL_FILE
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise WriteFailed(self._path, error) from error
        self._synced_at = time.monotonic()

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Write the episode's line to the operating system, and to the disk every second.

        Raises:
            NotWritten: the disk is full or gone.
        """
        line = msgspec.json.encode(row_of(result)) + b"\n"
        size = os.fstat(self._fd).st_size
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError as error:
            with contextlib.suppress(OSError):  # else --resume cuts it off
                os.ftruncate(self._fd, size)  # half a line would look like a finished episode's
            raise WriteFailed(self._path, error) from error
        if time.monotonic() - self._synced_at > _SYNC_EVERY_S:
            self._sync()
            self._synced_at = time.monotonic()

    def close(self) -> None:
        """Sync and close the file.

        Raises:
            RunFolderError: the disk did not take the last episodes.
        """
        try:
            self._sync()
        finally:
            os.close(self._fd)

    def _sync(self) -> None:
        try:
            sync(self._fd)
        except OSError as error:
            raise RunFolderError(
                f"the disk did not take the last episodes of {self._path}: {error.strerror}; those "
                "before are kept: see to the disk, then run again with --resume"
            ) from error


class EffortLog(Callback):
    """Keeps the last pulse of the session and writes it down when the session ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SESSIONS_FILE
        self._last: RunProgress | None = None

    def on_progress(self, progress: RunProgress) -> None:
        """Remember how far the session is."""
        self._last = progress

    def close(self) -> None:
        """Append the session's line.

        Raises:
            NotWritten: the disk is full or gone.
        """
        if self._last is None:
            return
        try:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(self._last) + b"\n")
        except OSError as error:
            raise WriteFailed(self._path, error) from error
