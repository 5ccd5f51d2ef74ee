"""The log of a dataset's recording sessions: one line for every episode that was saved.

``.proctor/recording.jsonl`` says how an episode ended, how regular its ticks were, which images
repeat and how often a limit changed an action. Readers of datasets and the Hub ignore the folder.
Edits carry it over with the new numbers. Of two lines with one number the later one is true: the
episode was recorded again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

import msgspec

from proctor.control.loop.pacing import Jitter
from proctor.datasets.writing.staging import RECORDING_LOG
from proctor.runs.jsonl import read_jsonl, truncate_partial_line
from proctor.system.files import sync


class EpisodeEnd(Enum):
    """Why an episode ended."""

    TIME = "time"
    KEY = "key"
    """The operator ended it."""
    SUCCESS = "success"
    """The simulated scene reported success."""
    STOP = "stop"
    """The operator ended the session; the episode is shorter than planned."""
    SIGNAL = "signal"
    ERROR = "error"
    """A device failed; the frames until then are whole."""

    @property
    def is_partial(self) -> bool:
        """Whether the episode was cut short."""
        return self in (EpisodeEnd.STOP, EpisodeEnd.SIGNAL, EpisodeEnd.ERROR)


class EpisodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """How one episode was recorded."""

    frames: int
    seconds: float
    ended_by: EpisodeEnd
    jitter: Jitter
    success: bool | None = None
    """The verdict of a simulated scene."""
    seed: int | None = None
    """Seed of a simulated scene."""
    repeated: dict[str, int] = {}
    """Camera -> frames that repeat an image."""
    changed: dict[str, int] = {}
    """Channel -> frames in which a limit changed the requested action."""
    waited_s: float = 0.0
    """Seconds that the loop waited for the encoder."""


class LoggedEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log."""

    episode: int
    saved_at: str
    report: EpisodeReport


class RecordingLog:
    """Appends to the log of the dataset in ``root``."""

    def __init__(self, root: Path) -> None:
        self._path = root / RECORDING_LOG

    def open(self) -> None:
        """Remove a line that a kill cut off."""
        truncate_partial_line(self._path)

    def add(self, episode: int, report: EpisodeReport) -> None:
        """Append the line of a saved episode; when this returns it is on the disk.

        Raises:
            OSError: it cannot be written.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = msgspec.json.encode(LoggedEpisode(episode=episode, saved_at=now, report=report))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            sync(file.fileno())


def next_seed(root: Path, least: int) -> int:
    """Return the seed of the next simulated scene: after those that are in the dataset."""
    used = [line.report.seed for line in read_recording_log(root).values()]
    return max([least, *(seed + 1 for seed in used if seed is not None)])


def read_recording_log(root: Path) -> Mapping[int, LoggedEpisode]:
    """Return the last line of every episode by number; damaged lines are left out."""
    decoder = msgspec.json.Decoder(LoggedEpisode)
    lines = read_jsonl(root / RECORDING_LOG, decoder.decode)
    return {line.value.episode: line.value for line in lines if line.value is not None}
