"""Files that a run writes as it goes: its journal, and the inference totals of each session."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from proctor.callbacks.base import Callback
from proctor.errors import RunFolderError, WriteFailed
from proctor.runs.journal import JOURNAL_FILE, EpisodeRecord, make_record, measures_starts
from proctor.runs.records import RunProgress
from proctor.runs.sessions import SESSIONS_FILE
from proctor.system.files import sync
from proctor.types import EpisodeResult

_SYNC_EVERY_S = 1.0


class JournalWriter(Callback):
    """Appends finished episodes to ``episodes.jsonl``, one complete line at a time."""

    def __init__(self, folder: Path, sync_every_s: float = _SYNC_EVERY_S) -> None:
        """Open the journal; ``sync_every_s=0`` syncs every line to disk at once."""
        self._path = folder / JOURNAL_FILE
        self._measures_starts = measures_starts(folder)
        self._sync_every_s = sync_every_s
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise WriteFailed(self._path, error) from error
        self._synced_at = time.monotonic()

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Write the episode's line to the operating system, and sync it to disk every second."""
        self.write(make_record(result))

    def write(self, record: EpisodeRecord) -> None:
        """Write a line, and sync it to disk if the last sync is ``sync_every_s`` ago."""
        if not self._measures_starts:
            record = replace(record, start=None)
        line = msgspec.json.encode(record) + b"\n"
        size = os.fstat(self._fd).st_size
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError as error:
            with contextlib.suppress(OSError):  # if this fails, --resume removes it
                os.ftruncate(self._fd, size)  # part of a line would look like a finished episode
            raise WriteFailed(self._path, error) from error
        if time.monotonic() - self._synced_at >= self._sync_every_s:
            self._sync()
            self._check_in_place()
            self._synced_at = time.monotonic()

    def close(self) -> None:
        """Sync and close the file."""
        try:
            self._sync()
        finally:
            os.close(self._fd)

    def _check_in_place(self) -> None:
        """Notice a folder that was moved or removed, before hours of episodes go nowhere."""
        try:
            self._path.stat()
        except FileNotFoundError as error:
            raise WriteFailed(self._path, error) from error

    def _sync(self) -> None:
        try:
            sync(self._fd)
        except OSError as error:
            raise RunFolderError(
                f"cannot write the last episodes to {self._path}: {error.strerror}; "
                "earlier ones are kept: check the disk, then run again with --resume",
                code="disk.write-failed",
            ) from error


class EffortLog(Callback):
    """Keeps the session's last progress and writes it when the session ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SESSIONS_FILE
        self._last: RunProgress | None = None

    def on_progress(self, progress: RunProgress) -> None:
        """Store the progress of the session."""
        self._last = progress

    def close(self) -> None:
        """Append the session's line."""
        if self._last is None:
            return
        try:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(self._last) + b"\n")
        except OSError as error:
            raise WriteFailed(self._path, error) from error
