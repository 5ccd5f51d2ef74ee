"""A run: the folder that holds everything about one evaluation, and the rules for using it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from proctor.errors import RunFolderError, UsageError, WriteFailed
from proctor.fingerprint import PROTOCOL_FORMAT, changed_fields, describe_changes, flatten
from proctor.runs.journal import read_journal
from proctor.runs.obstacles import refuse_what_is_in_the_way
from proctor.runs.records import RECORD_FORMAT, PlannedTask, Seconds, refuse_newer
from proctor.system import clock
from proctor.system.files import atomic_write, read_regular_file
from proctor.system.locks import CLAIM_FILE, LOCK_FILE, acquire_lock

RUN_FILE = "run.json"
EVAL_INFO_FILE = "eval_info.json"
_LEAST_FREE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class RunRecord:
    """What ``run.json`` says: how the run was asked for and what defines its episodes."""

    given: dict[str, Any]
    resolved: dict[str, Any]
    protocol: dict[str, Any]
    """All that defines an episode; the fingerprint is taken over this and nothing else."""
    versions: dict[str, str]
    machine: dict[str, Any]
    sessions: list[float]
    """When each process that worked on this run began, in seconds since 1970."""
    planned_episodes: int | None = None
    """How many episodes the whole run has; None in folders from before this was written down."""
    bit_reproducible: bool | None = None
    """Whether an episode gives the same bits whatever the load: on a CPU, or with --eval.strict.
    None in folders from before this was written down."""
    tasks: list[PlannedTask] | None = None
    """The tasks of the whole run; None in folders from before this was written down."""

    @property
    def fingerprint(self) -> str:
        """A hash over all that defines the episodes.

        A field that is null says nothing: a Proctor that has one more, left alone, goes on with
        the runs of one that has not.
        """
        said = {name: value for name, value in flatten(self.protocol).items() if value is not None}
        canonical = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _WrittenConfig:
    given: dict[str, Any]
    resolved: dict[str, Any]


_Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]


@dataclass(frozen=True)
class _Written:
    """What ``run.json`` must look like, whoever wrote it."""

    config: _WrittenConfig
    protocol: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    sessions: list[Seconds]
    planned_episodes: _Count | None = None
    bit_reproducible: bool | None = None
    tasks: list[PlannedTask] | None = None
    format: _Count = RECORD_FORMAT


class RunFolder:
    """A run's folder on disk."""

    def __init__(self, path: Path, *, or_next: bool = False) -> None:
        self.path = path
        self._or_next = or_next
        """Whether the name is only a proposal: ``locked`` takes the next one that is free."""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and keep other processes out of it; the lock dies with this process.

        A folder that was made for this and got nothing to hold is taken away again.

        Raises:
            RunFolderError: it cannot be written, is nearly full, or another process works in it.
        """
        made = self._or_next or not self.path.exists()
        try:
            if self._or_next:
                self.path, self._or_next = new_folder(self.path), False
            elif made:
                self.path.mkdir(parents=True, exist_ok=True)
            elif not self.path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory")
            refuse_what_is_in_the_way(self.path)
            lock = acquire_lock(self.path)  # a folder in use stays: it is the other one's
        except OSError as error:
            raise RunFolderError(
                f"cannot write to {self.path}: {error.strerror}", code="disk.not-writable"
            ) from None
        try:
            _check_room(self.path)
            yield
        finally:
            if made:
                remove_if_unused(self.path)
            lock.release()

    def read(self) -> RunRecord | None:
        """Return what ``run.json`` says; None when this is no run folder.

        Raises:
            RunFolderError: the file is damaged, or of a format that only a newer Proctor knows.
        """
        path = self.path / RUN_FILE
        try:
            # Not msgspec's own reader: a path that is no UTF-8 is written as a lone surrogate.
            plain = json.loads(read_regular_file(path), parse_constant=_no_number)
            _refuse_newer_formats(plain, path)
            written = msgspec.convert(plain, type=_Written)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise RunFolderError(
                f"cannot read {path}: {error.strerror}", code="run.unreadable"
            ) from None
        except (ValueError, RecursionError) as error:
            raise RunFolderError(f"{path} is damaged: {error}", code="run.damaged") from None
        return RunRecord(
            given=written.config.given,
            resolved=written.config.resolved,
            protocol=written.protocol,
            versions=written.versions,
            machine=written.machine,
            sessions=[float(second) for second in written.sessions],
            planned_episodes=written.planned_episodes,
            bit_reproducible=written.bit_reproducible,
            tasks=written.tasks,
        )

    def write(self, record: RunRecord) -> None:
        """Write ``run.json`` in one step."""
        content = {
            "format": RECORD_FORMAT,
            "fingerprint": record.fingerprint,
            "config": {"given": record.given, "resolved": record.resolved},
            "protocol": record.protocol,
            "versions": record.versions,
            "machine": record.machine,
            "sessions": record.sessions,
            "planned_episodes": record.planned_episodes,
            "bit_reproducible": record.bit_reproducible,
            "tasks": None if record.tasks is None else [asdict(task) for task in record.tasks],
        }
        write_json(self.path / RUN_FILE, content)

    def joined(self, record: RunRecord, *, resume: bool) -> RunRecord:
        """Return the record of a session here: of a new run, or a further one of the same run.

        Writes nothing: what is refused later must not have changed the folder.

        Raises:
            UsageError: it holds a run and ``resume`` was not asked for, holds none and it was, or
                holds one whose episodes are defined differently.
        """
        earlier = self.read()
        if earlier is None and resume:
            raise UsageError(f"--resume: {self.path} holds no run to resume", code="run.not-found")
        if earlier is not None and not resume:
            raise UsageError(
                f"{self.path} already holds a run; add --resume to complete it, or choose another "
                "--output_dir",
                code="run.exists",
            )
        if earlier is not None:
            _check_same_episodes(self.path, earlier, record)
        sessions = [] if earlier is None else earlier.sessions
        ends = [row.end_time for row in read_journal(self.path).rows]
        began = clock.begin_session(not_before=max([*sessions, *ends], default=0.0))
        return replace(record, sessions=[*sessions, began])


def new_folder(path: Path) -> Path:
    """Make a folder that did not exist: ``path``, else the first free of NAME-2, NAME-3 ...

    Raises:
        OSError: it cannot be made.
    """
    for number in itertools.count(1):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            if not path.parent.is_dir():
                raise
        else:
            return candidate
    raise AssertionError("the numbers have ended")


def _check_room(folder: Path) -> None:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise RunFolderError(
            f"cannot write to {folder}: {error.strerror}", code="disk.not-writable"
        ) from None
    if free < _LEAST_FREE_BYTES:
        raise RunFolderError(
            f"the disk of {folder} is full; make room or choose another --output_dir",
            code="disk.full",
        )


def is_unused(folder: Path) -> bool:
    """Tell whether a folder holds nothing but what locks leave."""
    return {entry.name for entry in folder.iterdir()} <= {LOCK_FILE, CLAIM_FILE}


def remove_if_unused(folder: Path) -> None:
    """Take away a folder that holds nothing but its lock."""
    with contextlib.suppress(OSError):
        if is_unused(folder):
            for name in (LOCK_FILE, CLAIM_FILE):
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()


def _refuse_newer_formats(content: Any, path: Path) -> None:
    """Look at formats before anything else: what a newer one holds need not look like ours."""
    if isinstance(content, dict):
        refuse_newer(content.get("format"), RECORD_FORMAT, str(path))
        if isinstance(protocol := content.get("protocol"), dict):
            refuse_newer(protocol.get("format"), PROTOCOL_FORMAT, f"the protocol in {path}")


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _check_same_episodes(path: Path, earlier: RunRecord, now: RunRecord) -> None:
    if earlier.protocol.get("format") != now.protocol.get("format"):
        raise UsageError(
            f"--resume: {path} was begun by a Proctor that wrote down less of what defines an "
            "episode, so nobody can tell whether the rest would be of the same policy; choose "
            "another --output_dir",
            code="run.older-protocol",
        )
    changed = changed_fields(earlier.protocol, now.protocol)
    if changed:
        raise UsageError(
            f"--resume: the episodes in {path} are defined differently "
            f"({describe_changes(changed)}); choose another --output_dir",
            code="run.definition-changed",
        )


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file of a run atomically.

    Raises:
        WriteFailed: the disk is full, missing or read-only.
    """
    write_run_file(path, json.dumps(content, indent=2) + "\n")


def write_run_file(path: Path, content: str | bytes) -> None:
    """Write a file of a run or a report atomically.

    Missing folders are not created: a run folder that was removed meanwhile must stay removed.

    Raises:
        WriteFailed: the disk is full, missing or read-only.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        atomic_write(path, data, parents=False)
    except OSError as error:
        raise WriteFailed(path, error) from error
