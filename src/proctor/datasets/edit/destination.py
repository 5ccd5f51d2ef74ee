"""Where an edited dataset goes: into a new folder, or into the place of what it was made of.

It is made in a folder beside its place and takes it in one step: whoever looks, and whoever finds
what a kill left, sees one of the two whole.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from proctor.datasets.writing.staging import lock_dataset, unlock_dataset
from proctor.errors import FolderInUse, UsageError
from proctor.system.files import recover_swap, swap, sync, sync_folder
from proctor.system.locks import CLAIM_FILE, LOCK_FILE, acquire_lock


@dataclass(frozen=True)
class Destination:
    """A folder for a dataset to be made."""

    root: Path
    in_place: bool = False
    """Whether a dataset is there, to be replaced."""
    backup: Path | None = None
    """Where the replaced one is kept, instead of the one that may be there; None: it is removed."""


def new_destination(root: Path) -> Destination:
    """Return a place where nothing is yet.

    Raises:
        UsageError: something is.
    """
    place = Path(os.path.abspath(root))  # noqa: PTH100  what is no folder yet cannot be resolved
    if place.is_symlink() or (place.exists() and not _is_empty(place)):
        raise UsageError(f"{root} exists; choose another folder, or remove it")
    return Destination(place)


def in_place_destination(root: Path, *, keep_old: bool = False) -> Destination:
    """Return the place of the dataset in ``root``; ``keep_old``: it stays beside, as ROOT_old."""
    place = root.resolve()
    recover_swap(place)
    if not place.is_dir():
        raise UsageError(f"{root}: no such folder")
    if any(file.is_symlink() for file in (place / "meta").glob("*")):
        raise UsageError(
            f"{root} is a download that others may share (its files are links); give --output=DIR"
        )
    backup = place.with_name(f"{place.name}_old") if keep_old else None
    return Destination(place, in_place=True, backup=backup)


@contextlib.contextmanager
def dataset_locked(place: Destination) -> Iterator[None]:
    """Keep others from a dataset that is to be replaced, from before it is read.

    Raises:
        UsageError: another process records into it or edits it.
    """
    if not place.in_place:
        yield
        return
    with _in_our_words(place):
        lock = lock_dataset(place.root)
    try:
        yield
    finally:
        unlock_dataset(place.root, lock)


@contextlib.contextmanager
def building(place: Destination) -> Iterator[Path]:
    """Yield an empty folder; what is in it at the end of the block is then at its place, on disk.

    If the block raises, nothing is left of it, and what was at the place is as it was.

    Raises:
        UsageError: another process works there, or it cannot be written.
    """
    parent = place.root.parent
    with contextlib.ExitStack() as stack, _in_our_words(place):
        parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(place)
        part = parent / f".{place.root.name}.edited-{os.getpid()}"
        part.mkdir()
        stack.callback(lock_dataset(part).release)
        stack.callback(shutil.rmtree, part, ignore_errors=True)  # what is there by then
        yield part
        _sync_all(part)
        _put(part, place)


def _put(part: Path, place: Destination) -> None:
    """Let what was made take its place."""
    if not place.in_place:
        part.rename(place.root)
        try:
            sync_folder(place.root.parent)
        except OSError:
            place.root.rename(part)  # or it would stand in the way of the next try
            raise
    else:
        swap(place.root, part)
        if place.backup is not None:
            shutil.rmtree(place.backup, ignore_errors=True)
            part.rename(place.backup)
            _unlocked(place.backup)
    _unlocked(place.root)


def _unlocked(folder: Path) -> None:
    """Remove what locks leave in a folder that has moved."""
    for name in (LOCK_FILE, CLAIM_FILE):
        with contextlib.suppress(OSError):  # what was made is at its place, and whole
            (folder / name).unlink(missing_ok=True)


def _remove_leftovers(place: Destination) -> None:
    """Remove what edits of this place that were killed have left; one that goes on has a lock."""
    for left in place.root.parent.glob(f".{glob.escape(place.root.name)}.edited-*"):
        with contextlib.suppress(FolderInUse):
            lock = acquire_lock(left)
            shutil.rmtree(left)
            lock.release()


@contextlib.contextmanager
def _in_our_words(place: Destination) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kept = f"{place.root} is as it was" if place.in_place else "nothing is left of it"
        where = place.root.parent
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UsageError(f"no space left in {where} for the edited dataset; {kept}") from None
        reason = error.strerror or str(error)
        raise UsageError(
            f"cannot write the edited dataset in {where}: {reason} ({error.filename}); {kept}"
        ) from None


def _sync_all(folder: Path) -> None:
    """Wait until everything in ``folder`` is on the disk."""
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            sync_folder(path)
        elif path.stat().st_nlink == 1:  # what is linked was there before
            with path.open("rb") as file:
                sync(file.fileno())


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
