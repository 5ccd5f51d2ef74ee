"""Where an edited dataset goes: a new folder, or the folder of its source.

The dataset is built in a temporary folder beside the destination and moved there in one step. A
reader, and a user after a kill, finds either the old dataset or the new one, complete.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from proctor.datasets.format.info import INFO_FILE
from proctor.datasets.writing.staging import (
    STAGING_FOLDER,
    StagingArea,
    lock_dataset,
    remove_lock_files,
    unlock_dataset,
)
from proctor.errors import FolderInUse, UsageError
from proctor.system.files import (
    EDITED,
    atomic_write,
    file_stamp,
    read_regular_file,
    recover_swap,
    require_utf8,
    swap,
    sync,
    sync_folder,
)
from proctor.system.locks import Lock, acquire_lock

_TOGETHER = ".together-"
_MOVED = "moved.json"
"""File with the name and the stamp of every dataset that ``building_together`` moves."""
_BACKUP_PENDING = f"{STAGING_FOLDER}/backup_pending"
"""File in an edited dataset until the dataset that it replaces has the name of its backup."""


@dataclass(frozen=True)
class Destination:
    """The folder of an edited dataset."""

    root: Path
    in_place: bool = False
    """Whether the result replaces a dataset in ``root``."""
    keep_old: bool = False
    """Whether the replaced dataset is kept beside ``root``."""
    backup: Path | None = None
    """Folder that will keep the replaced dataset; chosen once the dataset is locked."""


def new_destination(root: Path) -> Destination:
    """Return a destination in a folder that does not exist or is empty."""
    path = Path(os.path.abspath(root))  # noqa: PTH100  a folder that does not exist yet
    require_utf8(path)
    if not is_free(path):
        raise UsageError(
            f"{root} exists; choose another folder, or remove it", code="dataset.exists"
        )
    return Destination(path)


def in_place_destination(root: Path, *, keep_old: bool = False) -> Destination:
    """Return the destination that replaces the dataset in ``root``.

    With ``keep_old``, the replaced dataset is kept beside it, under a name that is free.
    """
    path = root.resolve()
    require_utf8(path)
    recover_swap(path)
    if not path.is_dir():
        raise UsageError(f"{root}: no such folder", code="dataset.not-found")
    if any(file.is_symlink() for file in (path / "meta").glob("*")):
        raise UsageError(
            f"{root} is a download that other programs may share (its files are symbolic links); "
            "give --output=DIR",
            code="dataset.shared-download",
        )
    return Destination(path, in_place=True, keep_old=keep_old)


def free_backup(root: Path, suffix: str = "_old") -> Path:
    """Return a path beside ``root`` where nothing is: ROOT_old, ROOT_old_2, ROOT_old_3, ..."""
    for number in itertools.count(1):
        path = root.with_name(f"{root.name}{suffix}{'' if number == 1 else f'_{number}'}")
        if not os.path.lexists(path):
            return path
    raise AssertionError("unreachable")


@contextlib.contextmanager
def dataset_locked(destination: Destination) -> Iterator[Destination]:
    """Hold the lock of a dataset that will be replaced; take it before reading the dataset.

    Yield the destination with the folder of its backup: no other edit chooses that folder now.
    """
    if not destination.in_place:
        yield destination
        return
    with _explaining_write_errors(destination):
        lock = lock_dataset(destination.root)
    try:
        with _explaining_write_errors(destination):
            remove_leftovers(destination.root)  # a pending backup takes its name first
        backup = free_backup(destination.root) if destination.keep_old else None
        yield replace(destination, backup=backup)
    except BaseException:
        unlock_dataset(destination.root, lock)
        raise
    lock.release()  # the lock files went with the replaced folder


@contextlib.contextmanager
def building(destination: Destination) -> Iterator[Path]:
    """Yield an empty folder; after the block its content is at ``destination``, on the disk.

    If the block raises, the folder is removed and the destination is unchanged.
    """
    with _explaining_write_errors(destination):
        with staged(destination) as (folder, lock):
            yield folder
        unlock_dataset(destination.root, lock)


@contextlib.contextmanager
def staged(destination: Destination) -> Iterator[tuple[Path, Lock]]:
    """Yield an empty folder and its lock; after the block its content is at ``destination``.

    The lock is held after the block too, unless the block raised.

    Raises:
        DatasetError: another process works there.
        OSError: it cannot be written; the destination is unchanged.
    """
    parent = destination.root.parent
    parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(destination.root)
    folder = parent / f".{destination.root.name}{EDITED}{os.getpid()}"
    folder.mkdir()
    lock = None
    try:
        lock = lock_dataset(folder)
        yield folder, lock
        if destination.backup is not None:
            (folder / STAGING_FOLDER).mkdir(exist_ok=True)
            (folder / _BACKUP_PENDING).touch()
        _sync_all(folder)
        _move(folder, destination)
    except BaseException:
        if not _is_backup_of(destination.root, folder):
            shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            lock.release()
        raise
    shutil.rmtree(folder, ignore_errors=True)  # the replaced dataset


def _move(folder: Path, destination: Destination) -> None:
    """Move a complete dataset to its destination."""
    if not destination.in_place:
        folder.rename(destination.root)
        try:
            sync_folder(destination.root.parent)
        except OSError:
            destination.root.rename(folder)  # otherwise it blocks the next attempt
            raise
    elif destination.backup is None:
        swap(destination.root, folder)
    else:
        swap(destination.root, folder)
        try:
            _name_backup(destination.root, folder, destination.backup)
        except BaseException:
            if destination.backup.exists():
                destination.backup.rename(folder)
            swap(destination.root, folder)
            raise


def _name_backup(root: Path, replaced: Path, backup: Path) -> None:
    """Give the replaced dataset the name of the backup, durably."""
    replaced.rename(backup)
    sync_folder(root.parent)
    remove_lock_files(backup)
    (root / _BACKUP_PENDING).unlink()
    StagingArea(root).leave()


def _is_backup_of(root: Path, folder: Path) -> bool:
    """Tell whether ``folder`` is the dataset that an edit of ``root`` replaced and has to keep."""
    return (root / _BACKUP_PENDING).exists() and not (folder / _BACKUP_PENDING).exists()


@contextlib.contextmanager
def building_together(folder: Path, stem: str) -> Iterator[Path]:
    """Yield an empty folder; after the block its datasets are in ``folder``: all of them, or none.

    A kill between the moves leaves some of them there until ``undo_unfinished_moves``.
    """
    everything = Destination(folder / stem)
    require_utf8(everything.root)
    with _explaining_write_errors(everything):
        folder.mkdir(parents=True, exist_ok=True)
        staging = folder / f".{stem}{_TOGETHER}{os.getpid()}"
        staging.mkdir()
        lock = acquire_lock(staging)
        try:
            yield staging
            moved = {
                path.name: file_stamp(path / INFO_FILE)
                for path in staging.iterdir()
                if path.is_dir()
            }
            atomic_write(staging / _MOVED, json.dumps(moved).encode())
            for name in moved:
                (staging / name).rename(folder / name)
            sync_folder(folder)
        except BaseException:
            _undo_moves(staging)
            raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            lock.release()


def undo_unfinished_moves(folder: Path, stem: str) -> None:
    """Remove what a killed ``building_together`` left in ``folder``, also datasets it had moved."""
    for staging in folder.glob(f".{glob.escape(stem)}{_TOGETHER}*"):
        with contextlib.suppress(FolderInUse):
            lock = acquire_lock(staging)
            _undo_moves(staging)
            shutil.rmtree(staging)
            lock.release()


def _undo_moves(staging: Path) -> None:
    """Move the datasets of an unfinished ``building_together`` back to its staging folder."""
    try:
        said = json.loads(read_regular_file(staging / _MOVED))
        moved = {Path(name).name: tuple(stamp) for name, stamp in said.items()}
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return  # nothing was moved
    if not any((staging / name).is_dir() for name in moved):
        return  # every dataset was moved
    for name, stamp in moved.items():
        made = staging.parent / name
        if not (staging / name).exists() and file_stamp(made / INFO_FILE) == stamp:
            made.rename(staging / name)


def remove_leftovers(root: Path) -> None:
    """Remove the temporary folders of killed edits of ``root``; running edits hold a lock.

    A replaced dataset that a killed edit had to keep gets the name of a backup.
    """
    recover_swap(root)
    for left in root.parent.glob(f".{glob.escape(root.name)}{EDITED}*"):
        with contextlib.suppress(FolderInUse):
            lock = acquire_lock(left)
            if _is_backup_of(root, left):
                _name_backup(root, left, free_backup(root))
            else:
                shutil.rmtree(left)
            lock.release()


@contextlib.contextmanager
def _explaining_write_errors(destination: Destination) -> Iterator[None]:
    """Turn an OSError into an error that says whether the destination is unchanged."""
    try:
        yield
    except OSError as error:
        kept = f"{destination.root} is unchanged" if destination.in_place else "nothing was created"
        where = destination.root.parent
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = " (--backup=false needs less space)" if destination.keep_old else ""
            raise UsageError(
                f"no space left in {where} for the edited dataset; {kept}{hint}", code="disk.full"
            ) from None
        reason = error.strerror or str(error)  # pyarrow's has neither number nor file
        named = "" if error.filename is None else f" ({error.filename})"
        raise UsageError(
            f"cannot write the edited dataset in {where}: {reason}{named}; {kept}",
            code="disk.not-writable",
        ) from None


def _sync_all(folder: Path) -> None:
    """Wait until everything in ``folder`` is on the disk."""
    for path in [*folder.rglob("*"), folder]:
        if path.is_symlink():
            continue
        if path.is_dir():
            sync_folder(path)
        elif path.stat().st_nlink == 1:  # a hard link's content is on the disk already
            with path.open("rb") as file:
                sync(file.fileno())


def is_free(path: Path) -> bool:
    """Tell whether a folder can be created at ``path``, or is there and empty."""
    return not os.path.lexists(path) or (not path.is_symlink() and _is_empty(path))


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
