"""Labels that a person gives to episodes: ``labels.jsonl``, one line per change.

The last line of an episode counts. Lines are only appended, so that two open pages lose nothing of
each other.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from proctor.errors import WriteFailed
from proctor.runs.jsonl import end_partial_line, read_jsonl
from proctor.runs.records import NonNegativeInt, Seconds
from proctor.system import clock
from proctor.system.files import sync
from proctor.types import EpisodeKey

LABELS_FILE = "labels.jsonl"
MAX_LABEL_LENGTH = 200
"""Characters of one label."""
MAX_LABELS = 20
"""Labels of one episode."""

_Label = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_LABEL_LENGTH)]


@dataclass(frozen=True)
class LabelRecord:
    """One line: all labels of an episode, from now on."""

    suite: str
    task_id: NonNegativeInt
    episode_index: NonNegativeInt
    labels: Annotated[list[_Label], msgspec.Meta(max_length=MAX_LABELS)]
    time: Seconds = field(default_factory=clock.now)
    """When the labels were given, in seconds since 1970."""

    @property
    def key(self) -> EpisodeKey:
        """The key of the episode inside its run."""
        return (self.suite, self.task_id, self.episode_index)


_decode = msgspec.json.Decoder(LabelRecord).decode


def read_labels(folder: Path) -> dict[EpisodeKey, list[str]]:
    """Return the labels of a run's episodes; damaged lines are ignored."""
    labels: dict[EpisodeKey, list[str]] = {}
    for line in read_jsonl(folder / LABELS_FILE, _decode):
        if line.value is not None:
            labels[line.value.key] = line.value.labels
    return {key: names for key, names in labels.items() if names}


def append_label(folder: Path, record: LabelRecord) -> None:
    """Append a line to the run's labels and sync it to disk."""
    path = folder / LABELS_FILE
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o644)
        with os.fdopen(fd, "ab", buffering=0) as file:
            end_partial_line(fd)
            file.write(msgspec.json.encode(record) + b"\n")
            sync(fd)
    except OSError as error:
        raise WriteFailed(path, error) from error
