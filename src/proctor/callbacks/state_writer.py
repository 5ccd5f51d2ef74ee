"""Writes where things were in each episode, for the report page."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import BinaryIO

import msgspec

from proctor.callbacks.base import Callback
from proctor.errors import WriteFailed
from proctor.runs.jsonl import end_partial_line
from proctor.runs.states import STATES_FILE, make_state_record
from proctor.types import EpisodeResult


class StateWriter(Callback):
    """Appends the states of finished episodes to ``states.jsonl``.

    The file is created with its first line: benchmarks without coordinates have none.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / STATES_FILE
        self._file: BinaryIO | None = None

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Write the episode's line."""
        record = make_state_record(result)
        if record is None:
            return
        try:
            if self._file is None:
                self._file = self._path.open("a+b")
                end_partial_line(self._file.fileno())
            self._file.write(msgspec.json.encode(record) + b"\n")
            self._file.flush()
        except OSError as error:
            raise WriteFailed(self._path, error) from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a line that the disk refused was reported
                self._file.close()
