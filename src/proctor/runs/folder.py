"""The folder of one evaluation: ``run.json``, the lock, and the rules for starting and resuming."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from proctor.errors import RunFolderError, UsageError, WriteFailed
from proctor.fingerprint import PROTOCOL_FORMAT, changed_fields, describe_changes, flatten
from proctor.runs.journal import read_journal
from proctor.runs.path_checks import refuse_blocked_paths
from proctor.runs.paths import RecordedPath, keep_typed, pinned_settings
from proctor.runs.records import (
    RECORD_FORMAT,
    PlannedTask,
    Seconds,
    SessionPlan,
    refuse_newer_format,
)
from proctor.runs.sessions import SESSIONS_FILE
from proctor.system import clock
from proctor.system.files import (
    atomic_write,
    is_unfinished,
    read_regular_file,
    remove_unfinished,
)
from proctor.system.locks import CLAIM_FILE, LOCK_FILE, acquire_lock
from proctor.trained_starts import TRAINED_STARTS_FILE
from proctor.types import Score

RUN_FILE = "run.json"
EVAL_INFO_FILE = "eval_info.json"
WANDB_ID_FILE = "wandb.json"
_OF_SESSIONS = (EVAL_INFO_FILE, SESSIONS_FILE, WANDB_ID_FILE, TRAINED_STARTS_FILE)
"""Files besides the journal that hold something of earlier sessions."""
_FOREIGN = {
    "meta/info.json": "dataset",
    "train.json": "training",
    "model.safetensors": "checkpoint",
}
"""Files of folders that a run would scatter its own files over, and what the folders are."""
_LEAST_FREE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class RunRecord:
    """The content of ``run.json``: the settings of the run and what defines its episodes."""

    given: dict[str, Any]
    resolved: dict[str, Any]
    protocol: dict[str, Any]
    """Everything that defines an episode. The fingerprint hashes this and nothing else."""
    versions: dict[str, str]
    machine: dict[str, Any]
    sessions: list[float]
    """Start time of each session (process that worked on this run), in seconds since 1970."""
    planned_episodes: int | None = None
    """Number of episodes of the whole run; None in folders of older versions."""
    bit_reproducible: bool | None = None
    """Whether episodes are bit-identical under any load: on a CPU, or with --eval.strict.
    None in folders of older versions."""
    tasks: list[PlannedTask] | None = None
    """The tasks of the whole run; None in folders of older versions."""
    paths: dict[str, RecordedPath] = field(default_factory=dict)
    """The paths in the settings by dotted name; empty in folders of older versions."""
    scores: list[Score] = field(default_factory=list)
    """The benchmark's scores to show; empty in folders of older versions."""
    warnings: list[str] = field(default_factory=list)
    """Warnings of the benchmark and the policy; empty in folders of older versions."""
    history: list[SessionPlan] = field(default_factory=list)
    """What each session planned; sessions of older versions are missing."""

    @property
    def pinned_given(self) -> dict[str, Any]:
        """The given settings, with the step's folder instead of ``checkpoints/last``."""
        return pinned_settings(self.given, self.paths)

    @property
    def is_recording(self) -> bool:
        """Whether the run records demonstrations (``proctor record``)."""
        return isinstance(self.resolved.get("record"), dict)  # of an evaluation: a folder or None

    @property
    def fingerprint(self) -> str:
        """The hash of everything that defines the episodes."""
        return fingerprint_of(self.protocol)


def fingerprint_of(protocol: Mapping[str, Any]) -> str:
    """Return the hash of a protocol.

    Fields that are null are left out. So a version with one more field, unset, can resume the runs
    of a version without it.
    """
    fields = flatten(protocol).items()
    defined = {name: value for name, value in fields if value is not None}
    canonical = json.dumps(defined, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _ConfigJson:
    given: dict[str, Any]
    resolved: dict[str, Any]
    paths: dict[str, RecordedPath] = field(default_factory=dict)


_Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]


@dataclass(frozen=True)
class _RunJson:
    """The schema of ``run.json``."""

    config: _ConfigJson
    protocol: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    sessions: list[Seconds]
    planned_episodes: _Count | None = None
    bit_reproducible: bool | None = None
    tasks: list[PlannedTask] | None = None
    scores: list[Score] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    history: list[SessionPlan] = field(default_factory=list)
    format: _Count = RECORD_FORMAT


class RunFolder:
    """A run's folder on disk: creates, locks, reads and writes it."""

    def __init__(self, path: Path, *, or_next: bool = False) -> None:
        self.path = path
        self._or_next = or_next
        """If the path exists, ``locked`` creates NAME-2, NAME-3 ... instead."""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and lock it; the lock ends with this process.

        A folder that was created here and stayed empty is removed again.

        Raises:
            RunFolderError: the folder cannot be written, is nearly full or is in use.
        """
        made = self._or_next or not self.path.exists()
        try:
            if self._or_next:
                self.path, self._or_next = make_new_folder(self.path), False
            elif made:
                self.path.mkdir(parents=True, exist_ok=True)
            elif not self.path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory")
            refuse_blocked_paths(self.path)
            lock = acquire_lock(self.path)  # outside the ``finally``: a folder in use must stay
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
        """Return the content of ``run.json``; None if there is no such file.

        Raises:
            RunFolderError: the file is damaged, or was written by a newer Proctor.
        """
        path = self.path / RUN_FILE
        try:
            # Not msgspec's parser: a path that is not UTF-8 is stored as a lone surrogate.
            plain = json.loads(read_regular_file(path), parse_constant=_refuse_constant)
            _refuse_newer_formats(plain, path)
            written = msgspec.convert(plain, type=_RunJson)
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
            paths=written.config.paths,
            scores=written.scores,
            warnings=written.warnings,
            history=written.history,
        )

    def write(self, record: RunRecord) -> None:
        """Write ``run.json`` atomically."""
        content = {
            "format": RECORD_FORMAT,
            "fingerprint": record.fingerprint,
            "config": {
                "given": record.given,
                "resolved": record.resolved,
                "paths": {name: asdict(path) for name, path in record.paths.items()},
            },
            "protocol": record.protocol,
            "versions": record.versions,
            "machine": record.machine,
            "sessions": record.sessions,
            "history": [asdict(session) for session in record.history],
            "planned_episodes": record.planned_episodes,
            "bit_reproducible": record.bit_reproducible,
            "tasks": None if record.tasks is None else [asdict(task) for task in record.tasks],
            "scores": [asdict(score) for score in record.scores],
            "warnings": record.warnings,
        }
        write_json(self.path / RUN_FILE, content)

    def refuse_foreign_content(self) -> None:
        """Refuse the folder of a dataset, a training or a checkpoint.

        Other files may be there, such as a log that the shell has begun.

        Raises:
            UsageError: naming what the folder holds.
        """
        for file, kind in _FOREIGN.items():
            if (self.path / file).exists():
                raise UsageError(
                    f"--output_dir: {self.path} holds a {kind} ({file}), not a run; choose another "
                    "folder",
                    code="run.foreign-content",
                )

    @property
    def has_episodes(self) -> bool:
        """Whether an episode of the run has ended; damaged lines of the journal count.

        Raises:
            RunFolderError: the journal cannot be read, or was written by a newer Proctor.
        """
        journal = read_journal(self.path)
        return bool(journal.rows or journal.damaged)

    def begin(self, record: RunRecord) -> None:
        """Write ``run.json``; in a first session, remove what a start without episodes left."""
        if len(record.sessions) == 1:
            for name in _OF_SESSIONS:
                (self.path / name).unlink(missing_ok=True)
        self.write(record)

    def session_record(self, record: RunRecord, *, resume: bool) -> RunRecord:
        """Return ``record`` with one more session, for a new run or a resumed one.

        A run without episodes, whose start failed, is begun anew. Writes nothing, so that a run
        that is refused later leaves the folder unchanged.

        Raises:
            UsageError: the folder has a run with episodes and ``resume`` is off; it has no run and
                ``resume`` is on; or its episodes are defined differently.
        """
        earlier = self.read()
        if earlier is None and resume:
            raise UsageError(f"--resume: {self.path} holds no run to resume", code="run.not-found")
        if earlier is not None and not self.has_episodes:
            earlier = None
        if earlier is not None and not resume:
            raise UsageError(
                f"{self.path} already holds a run; add --resume to complete it, or choose another "
                "--output_dir",
                code="run.exists",
            )
        if earlier is not None:
            _check_same_episodes(self.path, earlier, record)
            before = (earlier.given, earlier.paths)
            given, paths = keep_typed(record.given, record.paths, before, self.path)
            record = replace(record, given=given, paths=paths)
        sessions = [] if earlier is None else earlier.sessions
        history = [] if earlier is None else _ended_history(earlier, self.path)
        rows = read_journal(self.path).rows
        ends = [row.end_time for row in rows]
        started = clock.begin_session(not_before=max([*sessions, *ends], default=0.0))
        plan = _session_plan(record, started, sum(row.outcome.counts for row in rows))
        return replace(record, sessions=[*sessions, started], history=[*history, plan])


def results_section(folder: Path) -> dict[str, Any]:
    """Return the section "proctor" of ``eval_info.json``; empty if there is no such file."""
    try:
        section = json.loads(read_regular_file(folder / EVAL_INFO_FILE))["proctor"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return section if isinstance(section, dict) else {}


def _ended_history(earlier: RunRecord, folder: Path) -> list[SessionPlan]:
    """Return the plans of earlier sessions, with the decision of the last one's stop rule."""
    section = results_section(folder)
    stopped = section.get("stopped")
    wrote = section.get("session") == len(earlier.sessions) and not section.get("complete")
    if not earlier.history or stopped is None or not wrote:
        return earlier.history
    return [*earlier.history[:-1], replace(earlier.history[-1], stopped=str(stopped))]


def _session_plan(record: RunRecord, started: float, finished: int) -> SessionPlan:
    settings = record.resolved.get("eval")
    rule = settings.get("stop_when") if isinstance(settings, Mapping) else None
    against = record.resolved.get("against")
    return SessionPlan(
        started=started,
        finished=finished,
        planned=record.planned_episodes or 0,
        tasks=len(record.tasks or ()),
        stop_when=str(rule or "never").strip(),
        against=None if against is None else str(Path(str(against)).absolute()),
    )


def make_new_folder(path: Path) -> Path:
    """Create a new folder: ``path``, or the first of NAME-2, NAME-3 ... that does not exist.

    Raises:
        OSError: the folder cannot be created.
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
    raise AssertionError("unreachable: the numbers are unbounded")


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
    """Tell whether a folder contains nothing but lock files and unfinished files."""
    own = (LOCK_FILE, CLAIM_FILE)
    return all(entry.name in own or is_unfinished(entry) for entry in folder.iterdir())


def remove_if_unused(folder: Path) -> None:
    """Remove a folder that contains nothing but lock files and unfinished files."""
    with contextlib.suppress(OSError):
        if is_unused(folder):
            remove_unfinished(folder)
            for name in (LOCK_FILE, CLAIM_FILE):
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()


def _refuse_newer_formats(content: Any, path: Path) -> None:
    """Check the format numbers first: a newer format may have another schema."""
    if isinstance(content, dict):
        refuse_newer_format(content.get("format"), RECORD_FORMAT, str(path))
        if isinstance(protocol := content.get("protocol"), dict):
            refuse_newer_format(protocol.get("format"), PROTOCOL_FORMAT, f"the protocol in {path}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_same_episodes(path: Path, earlier: RunRecord, now: RunRecord) -> None:
    if earlier.protocol.get("format") != now.protocol.get("format"):
        raise UsageError(
            f"--resume: {path} was started by an older Proctor that recorded less of what defines "
            "an episode, so the rest may be of another policy; choose another --output_dir",
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
