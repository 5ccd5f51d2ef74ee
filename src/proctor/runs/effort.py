"""What a run cost the policy: one line per session in ``sessions.jsonl``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from proctor.errors import RunFolderError
from proctor.runs.journal import read_lines
from proctor.runs.records import Pulse
from proctor.types import EpisodeResult

FILE_NAME = "sessions.jsonl"


class EffortLog:
    """Keeps the last pulse of the session and writes it down when the session ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._last: Pulse | None = None

    def episode_ended(self, result: EpisodeResult) -> None:
        """Episodes stand in the journal."""

    def pulse(self, pulse: Pulse) -> None:
        """Remember how far the session is."""
        self._last = pulse

    def close(self) -> None:
        """Append the session's line.

        Raises:
            RunFolderError: the disk is full or gone.
        """
        if self._last is None:
            return
        try:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(self._last) + b"\n")
        except OSError as error:
            raise RunFolderError(f"cannot write {self._path}: {error.strerror}") from error


def read_effort(folder: Path) -> Pulse:
    """Add up the last pulses of a run's sessions; one that was killed has left none."""
    lines = read_lines(folder / FILE_NAME).splitlines()
    sessions = []
    for line in lines:
        try:
            sessions.append(msgspec.json.decode(line, type=Pulse))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # cut short by a power loss; it says nothing about any episode
    return Pulse(
        elapsed_s=sum(session.elapsed_s for session in sessions),
        steps=sum(session.steps for session in sessions),
        infer_s=sum(session.infer_s for session in sessions),
        batches=sum(session.batches for session in sessions),
        batched_requests=sum(session.batched_requests for session in sessions),
    )
