"""Edits of a dataset that its page asks for: delete, relabel and split marked episodes.

They are the edits of ``proctor data``, which copy rows and video packets. One edit runs at a time,
in a thread: a large dataset takes longer than a browser waits for an answer.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec

from proctor.datasets.edit import operations
from proctor.datasets.edit.build import BuiltDataset, edit
from proctor.datasets.edit.destination import in_place_destination
from proctor.datasets.edit.edit_plan import EditPlan, SourceDataset
from proctor.datasets.edit.split import split_into
from proctor.datasets.format.info_file import read_info
from proctor.errors import ProctorError, UsageError, strip_control_codes
from proctor.runs.jsonl import UNREADABLE
from proctor.runs.records import NonNegativeInt
from proctor.system.files import file_stamp

_MOST_TEXT = 10_000
_Text = Annotated[str, msgspec.Meta(max_length=_MOST_TEXT)]


class EditOperation(Enum):
    """What a page does with the marked episodes."""

    DELETE = "delete"
    RELABEL = "relabel"
    """Set their task."""
    SPLIT = "split"
    """Write them to a new dataset, and the others to another one if it is named."""


@dataclass(frozen=True)
class PageEdit:
    """An edit as the page sends it."""

    operation: EditOperation
    episodes: Annotated[list[NonNegativeInt], msgspec.Meta(min_length=1)]
    """The marked episodes."""
    version: _Text
    """Version of the dataset that the page shows; episodes have other numbers in other versions."""
    task: _Text = ""
    """New task of the marked episodes."""
    marked_name: _Text = ""
    """Name of the split of the marked episodes: DATASET_NAME."""
    others_name: _Text = ""
    """Name of the split of the other episodes; empty: they are not written."""

    @property
    def title(self) -> str:
        """The edit in a few words."""
        counted = _episodes(len(set(self.episodes)))
        if self.operation is EditOperation.RELABEL:
            return f"relabel {counted}: {self.task.strip()}"
        return f"{self.operation.value} {counted}"


class EditState(Enum):
    """How far the latest edit is."""

    NONE = "none"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class EditStatus:
    """The latest edit, as the page shows it."""

    state: EditState = EditState.NONE
    number: int = 0
    """Edits that were started before it and with it."""
    title: str = ""
    reason: str = ""
    """Why it failed, in one line."""
    backup: str | None = None
    """Folder of the dataset before the edit."""
    written: list[str] = field(default_factory=list)
    """New datasets, each with its number of episodes."""

    def to_json(self) -> str:
        """Return the status for the page."""
        return msgspec.json.encode(self).decode()


def parse_edit(body: bytes) -> PageEdit:
    """Return the edit that a page sent."""
    try:
        return msgspec.json.decode(body, type=PageEdit)
    except UNREADABLE as error:
        raise UsageError(
            f"not an edit: {strip_control_codes(str(error), 200)}", code="edit.invalid"
        ) from None


def dataset_version(root: Path) -> str:
    """Return a text that changes when the dataset's metadata are written or replaced."""
    files = sorted(path for path in (root / "meta").rglob("*") if path.is_file())
    stamps = [(str(path.relative_to(root)), file_stamp(path)) for path in files]
    return hashlib.sha256(repr(stamps).encode("utf-8", "surrogateescape")).hexdigest()[:16]


class DatasetEditor:
    """Runs the edits of one dataset, one at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._status = EditStatus()

    @property
    def status(self) -> EditStatus:
        """The latest edit."""
        return self._status

    @property
    def is_running(self) -> bool:
        """Whether an edit is running."""
        return self._status.state is EditState.RUNNING

    def start(self, asked: PageEdit) -> EditStatus:
        """Start an edit and return its status."""
        with self._starting:
            if self.is_running:
                raise UsageError(
                    f"another edit is running ({self._status.title}); wait until it has ended",
                    code="edit.running",
                )
            self._check_version(asked)
            number = self._status.number + 1
            self._status = EditStatus(EditState.RUNNING, number, strip_control_codes(asked.title))
            self._thread = threading.Thread(
                target=self._run, args=(asked, self._status), name="editing", daemon=True
            )
            self._thread.start()
            return self._status

    def wait(self) -> None:
        """Wait until no edit is running."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, asked: PageEdit, begun: EditStatus) -> None:
        failed = replace(begun, state=EditState.FAILED)
        status = replace(failed, reason="an unexpected error; the terminal shows it")
        try:
            status = _done(begun, self._make(asked))
        except (ProctorError, OSError) as error:
            status = replace(failed, reason=strip_control_codes(str(error)))
        finally:
            self._status = status

    def _make(self, asked: PageEdit) -> list[BuiltDataset]:
        """Make the edit and return the datasets that were written."""
        if asked.operation is EditOperation.SPLIT:
            splits = {asked.marked_name: sorted(set(asked.episodes))}
            if asked.others_name:
                splits[asked.others_name] = self._others(asked)
            return list(split_into(self._root, splits).values())

        def plan(source: SourceDataset) -> EditPlan:
            self._check_version(asked)  # once more: the dataset is locked now
            if asked.operation is EditOperation.DELETE:
                return operations.delete(source, asked.episodes)
            return operations.set_tasks(source, dict.fromkeys(asked.episodes, asked.task.strip()))

        return [edit(self._root, in_place_destination(self._root, keep_old=True), plan)]

    def _others(self, asked: PageEdit) -> list[int]:
        """Return the episodes that are not marked."""
        if asked.others_name == asked.marked_name:
            raise UsageError(
                f"both splits are called {asked.marked_name!r}; choose two names",
                code="edit.invalid",
            )
        marked, total = set(asked.episodes), read_info(self._root).total_episodes
        return [episode for episode in range(total) if episode not in marked]

    def _check_version(self, asked: PageEdit) -> None:
        if asked.version != dataset_version(self._root):
            raise UsageError(
                "the dataset has changed since this page was loaded; reload the page and mark the "
                "episodes again",
                code="edit.stale-page",
            )


def _episodes(n: int) -> str:
    return f"{n:,} episode{'' if n == 1 else 's'}"


def _done(begun: EditStatus, built: Sequence[BuiltDataset]) -> EditStatus:
    backups = [str(one.backup) for one in built if one.backup is not None]
    return replace(
        begun,
        state=EditState.DONE,
        backup=backups[0] if backups else None,
        written=[f"{one.root} ({_episodes(one.info.total_episodes)})" for one in built],
    )
