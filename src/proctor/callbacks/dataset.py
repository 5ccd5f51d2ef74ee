"""Append recorded episodes to a dataset in the order of the plan, whatever order they end in.

The dataset is therefore the same for any number of workers. A staged episode waits in the run
folder, complete; the ledger lists the episodes that are in the dataset.
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
    """The episodes in the dataset, in its order: one line of the run folder's ledger file for each.

    A line is on disk before its episode is in the dataset, so the dataset never has more episodes.
    """

    def __init__(self, folder: Path, in_dataset: int) -> None:
        """Open the ledger of a dataset with ``in_dataset`` episodes; remove the lines after them.

        Removed lines belong to episodes whose append did not finish: their staged episodes must
        still exist. If they do not, episodes were deleted from the dataset, and which ones is
        unknown.
        """
        self._path = folder / LEDGER_FILE
        keys = _read(self._path)
        gone = any(not (folder / staged_episode_path(key)).is_dir() for key in keys[in_dataset:])
        if len(keys) < in_dataset or gone:
            raise RunFolderError(
                f"the dataset has {in_dataset} episodes, {self._path} lists {len(keys)}: it "
                "was changed; record into another dataset and merge the two",
                code="run.dataset-changed",
            )
        self.keys = keys[:in_dataset]
        with explaining_write_errors(folder):
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.ftruncate(self._fd, sum(len(_line(key)) for key in self.keys))

    def add(self, *keys: EpisodeKey) -> None:
        """Log that these episodes are the dataset's next."""
        lines = b"".join(map(_line, keys))
        with explaining_write_errors(self._path.parent):
            while lines:  # a full disk takes a part first, and fails at the next call
                lines = lines[os.write(self._fd, lines) :]
            sync(self._fd)
        self.keys.extend(keys)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def _line(key: EpisodeKey) -> bytes:
    return msgspec.json.encode(key) + b"\n"


def _read(path: Path) -> list[EpisodeKey]:
    """Return the episodes of a ledger; an incomplete last line is ignored."""
    keys: list[EpisodeKey] = []
    for line in read_jsonl(path, msgspec.json.Decoder(EpisodeKey).decode):
        if line.value is None:
            raise RunFolderError(f"{path} is damaged in line {line.number}", code="run.damaged")
        keys.append(line.value)
    return keys


class AppendOrder:
    """Decides which ended episodes are appended next: task by task, in the order of the plan."""

    def __init__(
        self, plan: Iterable[EpisodeSpec], capacity: Mapping[_TaskKey, int] | None
    ) -> None:
        self._queues: dict[_TaskKey, deque[EpisodeKey]] = {}
        self._ended: dict[EpisodeKey, bool] = {}
        self._capacity = None if capacity is None else Counter(capacity)
        """How many more episodes of each task go into the dataset; None: all."""
        for spec in plan:
            self.add(spec)

    def add(self, spec: EpisodeSpec) -> None:
        """Add one episode at the end of its task."""
        self._queues.setdefault(spec.task.key, deque()).append(spec.key)

    def mark_ended(self, key: EpisodeKey, *, kept: bool) -> None:
        """Note that an episode has ended, and whether it has a staged episode."""
        self._ended[key] = kept

    def pop_ready(self) -> list[tuple[EpisodeKey, bool]]:
        """Remove and return the episodes that are next, each with whether it is appended."""
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
        """Remove and return all ended episodes: the others will not run any more."""
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
    """A dataset that is being recorded; after it is closed, another session can continue it."""

    writer: DatasetWriter
    recording: RecordingOptions
    ledger: Ledger

    @cached_property
    def appender(self) -> Appender:
        """The appender of this dataset."""
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
    """Appends the staged episodes that are kept, in the order of the plan."""

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
        """Plans another attempt at a task for an episode that is not kept."""

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Note the ended episode and queue the episodes that are next."""
        kept = self._recording.keep.keeps(result.outcome)
        if not kept:
            self._recording.discard(result.spec.key)
            retry = self._plan_retry(result.spec.task)
            if retry is not None:
                self._order.add(retry)
        self._order.mark_ended(result.spec.key, kept=kept)
        self._queue_kept(self._order.pop_ready())
        self._dataset.appender.append_if_due()

    def on_progress(self, progress: RunProgress) -> None:
        """Append queued episodes that have waited long enough."""
        self._dataset.appender.append_if_due()

    def append_ready(self) -> None:
        """Append the episodes that are next and wait for them."""
        self._queue_kept(self._order.pop_ready())
        self._dataset.appender.flush()

    def finish(self) -> str | None:
        """Append all ended episodes and complete the dataset; no episode will follow.

        Return why its files were not merged, or None if they were.
        """
        self._queue_kept(self._order.pop_all_ended())
        self._dataset.appender.flush()
        with explaining_write_errors(self._recording.folder):
            return self._dataset.writer.close()

    def _queue_kept(self, ready: Iterable[tuple[EpisodeKey, bool]]) -> None:
        """Queue the episodes that are kept and discard the others."""
        for key, kept in ready:
            if kept:
                self._dataset.appender.enqueue(key)
            else:
                self._recording.discard(key)
