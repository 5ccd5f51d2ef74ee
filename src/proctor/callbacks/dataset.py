"""Episodes become a dataset: takes are appended in the order of the plan, whenever they ended.

So a dataset's numbers are the same whatever the number of workers. A take that waits for its turn
lies in the run folder, complete; the ledger says which are in the dataset.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from proctor.callbacks.appender import Appender
from proctor.callbacks.base import Callback
from proctor.callbacks.staged_episodes import RecordingOptions, explaining_write_errors
from proctor.errors import RunFolderError
from proctor.runs.journal import staged_episode_path
from proctor.runs.jsonl import read_jsonl
from proctor.runs.records import RunProgress
from proctor.system.files import sync
from proctor.types import EpisodeKey, EpisodeResult, EpisodeSpec, Task

if TYPE_CHECKING:
    from proctor.datasets.writer import DatasetWriter

LEDGER_FILE = "recorded.jsonl"
_TaskKey = tuple[str, int]


class Ledger:
    """Which episodes are in the dataset, in its order: a line of the run folder for each.

    A line is on the disk before its episode is in the dataset, so the dataset is never ahead.
    """

    def __init__(self, folder: Path, in_dataset: int) -> None:
        """Open the ledger of a dataset that holds so many episodes; lines past them are undone.

        These were on their way in, so their takes are still there: else somebody has taken episodes
        out of the dataset, and nobody could tell which.

        Raises:
            RunFolderError: the dataset is not the one that it tells of.
        """
        self._path = folder / LEDGER_FILE
        keys = _read(self._path)
        gone = any(not (folder / staged_episode_path(key)).is_dir() for key in keys[in_dataset:])
        if len(keys) < in_dataset or gone:
            raise RunFolderError(
                f"the dataset holds {in_dataset} episodes, {self._path} knows of {len(keys)}: it "
                "was changed since; record into another dataset and merge the two"
            )
        self.keys = keys[:in_dataset]
        with explaining_write_errors(folder):
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.ftruncate(self._fd, sum(len(_line(key)) for key in self.keys))

    def add(self, *keys: EpisodeKey) -> None:
        """Write down that episodes are the dataset's next."""
        lines = b"".join(map(_line, keys))
        with explaining_write_errors(self._path.parent):
            while lines:  # a disk that fills up takes some of it, and says so at the next call
                lines = lines[os.write(self._fd, lines) :]
            sync(self._fd)
        self.keys.extend(keys)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def _line(key: EpisodeKey) -> bytes:
    return msgspec.json.encode(key) + b"\n"


def _read(path: Path) -> list[EpisodeKey]:
    """Return the episodes of a ledger; a last line cut short is passed over."""
    keys: list[EpisodeKey] = []
    for line in read_jsonl(path, msgspec.json.Decoder(EpisodeKey).decode):
        if line.value is None:
            raise RunFolderError(f"{path} is damaged in line {line.number}")
        keys.append(line.value)
    return keys


class AppendOrder:
    """Episodes that wait for their turn, task by task: the first of them is next, or nobody."""

    def __init__(
        self, plan: Iterable[EpisodeSpec], capacity: Mapping[_TaskKey, int] | None
    ) -> None:
        self._queues: dict[_TaskKey, deque[EpisodeKey]] = {}
        self._ended: dict[EpisodeKey, bool] = {}
        self._capacity = None if capacity is None else Counter(capacity)
        """How many more of each task are taken; None: all."""
        for spec in plan:
            self.add(spec)

    def add(self, spec: EpisodeSpec) -> None:
        """Let one more episode stand at the end of its task's."""
        self._queues.setdefault(spec.task.key, deque()).append(spec.key)

    def mark_ended(self, key: EpisodeKey, *, kept: bool) -> None:
        """Note that an episode has ended, and whether there is a take of it."""
        self._ended[key] = kept

    def pop_ready(self) -> list[tuple[EpisodeKey, bool]]:
        """Take those whose turn it is, each with whether it goes into the dataset."""
        taken: list[tuple[EpisodeKey, bool]] = []
        while self._queues:
            task, queue = next(iter(self._queues.items()))
            while queue and queue[0] in self._ended:
                taken.append(self._admit(task, queue.popleft()))
            if queue:
                break
            del self._queues[task]
        return taken

    def pop_all_ended(self) -> list[tuple[EpisodeKey, bool]]:
        """Take all that have ended: those before them never will."""
        for task, queue in self._queues.items():
            self._queues[task] = deque(key for key in queue if key in self._ended)
        return self.pop_ready()

    def _admit(self, task: _TaskKey, key: EpisodeKey) -> tuple[EpisodeKey, bool]:
        kept = self._ended.pop(key)
        if kept and self._capacity is not None:
            kept = self._capacity[task] > 0
            self._capacity[task] -= kept
        return key, kept


@dataclass(frozen=True)
class OpenDataset:
    """A dataset that is being recorded, and how; closed, it goes on in another session."""

    writer: DatasetWriter
    recording: RecordingOptions
    ledger: Ledger

    @cached_property
    def appender(self) -> Appender:
        """What puts takes into it."""
        return Appender(self.writer, self.recording, self.ledger)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(self.recording.remove_empty_folders)
            closing.callback(self.ledger.close)
            closing.callback(self.writer.release)
            closing.callback(self.appender.stop)


class DatasetCallback(Callback):
    """Appends the takes of episodes that are kept, in the order of the plan."""

    def __init__(
        self,
        dataset: OpenDataset,
        order: AppendOrder,
        plan_retry: Callable[[Task], EpisodeSpec | None] = lambda task: None,
    ) -> None:
        self._dataset = dataset
        self._recording = dataset.recording
        self._order = order
        self._plan_retry = plan_retry
        """Plans one more try at a task, for one that is not kept."""

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Let the episode into the line, and those whose turn it is on their way in.

        Raises:
            RunFolderError: the disk is full or gone.
        """
        kept = self._recording.keep.keeps(result.outcome)
        if not kept:
            self._recording.discard(result.spec.key)
            retry = self._plan_retry(result.spec.task)
            if retry is not None:
                self._order.add(retry)
        self._order.mark_ended(result.spec.key, kept=kept)
        self._put(self._order.pop_ready())
        self._dataset.appender.append_if_due()

    def on_progress(self, progress: RunProgress) -> None:
        """Let those in that have waited long enough.

        Raises:
            RunFolderError: the disk is full or gone.
        """
        self._dataset.appender.append_if_due()

    def append_ready(self) -> None:
        """Append the takes whose turn it is, and wait until they are in.

        Raises:
            RunFolderError: the disk is full or gone.
        """
        self._put(self._order.pop_ready())
        self._dataset.appender.flush()

    def finish(self) -> str | None:
        """Nothing more will be played: append what has ended and complete the dataset.

        Return why its files were left one an episode, where they were.
        """
        self._put(self._order.pop_all_ended())
        self._dataset.appender.flush()
        with explaining_write_errors(self._recording.folder):
            return self._dataset.writer.close()

    def _put(self, ended: Iterable[tuple[EpisodeKey, bool]]) -> None:
        """Let those that are kept stand in line, and forget the others."""
        for key, kept in ended:
            if kept:
                self._dataset.appender.enqueue(key)
            else:
                self._recording.discard(key)
