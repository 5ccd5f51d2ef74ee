"""File operations: bounded reads of regular files, atomic writes, and atomic swaps of folders.

A kill at any moment leaves the old content or the new one complete.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import re
import stat
import sys
from pathlib import Path
from typing import BinaryIO, TypeAlias

from proctor.errors import CannotRead, UsageError

MAX_JSON_BYTES = 64 * 2**20
"""Size limit of a settings or results file."""
MAX_JOURNAL_BYTES = 2 * 2**30
"""Size limit of a journal: all episodes that a run may have, each with a long error."""


UNFINISHED = ".part"
"""Suffix of a file until it is complete."""
EDITED = ".edited-"
"""Part of the name of a folder that will replace another one, or was replaced."""


FileStamp: TypeAlias = tuple[int, int, int, int]
"""Device, inode, size in bytes and time of the last write in nanoseconds."""
_CANNOT_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


def display_path(path: Path) -> Path:
    """Return ``path`` for display: relative to the current folder if it lies below it."""
    here = Path.cwd()
    return path.relative_to(here) if path != here and path.is_relative_to(here) else path


def require_utf8(path: Path) -> None:
    """Refuse a folder whose absolute path is not UTF-8, which Arrow and JSON files cannot hold."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{path.absolute()}: the path is not UTF-8, so datasets and trainings cannot be there; "
            "choose another folder",
            code="path.not-utf8",
        ) from None


_OF_THE_SYSTEM = frozenset(
    {
        *(errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR),
        *(errno.EACCES, errno.EPERM, errno.EBUSY, errno.ENXIO, errno.ENODEV, errno.ENOTCONN),
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS),
        *(errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    }
)
"""Errors of the disk, the network or a limit, which say nothing about a file's content."""
_NUMBER = re.compile(r"\[errno (\d+)\]", re.IGNORECASE)


def system_reason(error: BaseException) -> str | None:
    """Return why the system cannot read a file now; None if its content may be the reason.

    Arrow's errors may hold the error number only in their text.
    """
    if not isinstance(error, OSError):
        return None
    found = _NUMBER.search(str(error)) if error.errno is None else None
    number = int(found[1]) if found else error.errno
    return os.strerror(number) if number in _OF_THE_SYSTEM else None


def refuse_unreadable(path: Path, error: BaseException) -> None:
    """Refuse a file that the system cannot read now."""
    reason = system_reason(error)
    if reason is not None:
        raise CannotRead(f"cannot read {path}: {reason}") from None


def close_quietly(fd: int) -> None:
    """Close a descriptor whose data is on disk already, or that has none.

    Linux frees it even where ``close`` reports an error, as network disks do.
    """
    with contextlib.suppress(OSError):
        os.close(fd)


def sync(fd: int) -> None:
    """Wait until written data is on disk; ignore file systems that do not support it.

    Raises:
        OSError: the disk did not accept the data.
    """
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def publish(unfinished: Path, path: Path) -> None:
    """Rename a complete file to its final name, so that it survives a power cut.

    Raises:
        OSError: the disk did not accept the data.
    """
    with unfinished.open("rb") as file:
        sync(file.fileno())
    unfinished.replace(path)
    sync_folder(path.parent)


def read_regular_file(path: Path, most: int = MAX_JSON_BYTES) -> bytes:
    """Return the bytes of a regular file of at most ``most`` bytes.

    Raises:
        OSError: the file is missing, a folder, a pipe or a device, too large, or not readable.
    """
    with open_regular_file(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)  # not ``most``: Python allocates that


def open_regular_file(path: Path, most: int) -> BinaryIO:
    """Open a regular file of at most ``most`` bytes for reading; raises as read_regular_file."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would block without a writer
    with contextlib.ExitStack() as on_error:
        on_error.callback(os.close, fd)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"{found.st_size} bytes, expected at most {most}", str(path))
        on_error.pop_all()
    return os.fdopen(fd, "rb")


def atomic_write(path: Path, content: bytes, *, parents: bool = True) -> None:
    """Replace the file at ``path`` so that a reader sees the whole old or the whole new content.

    The content is on the disk before the file gets its name: otherwise a power loss could leave
    the name without the content. A symlink at ``path`` is replaced, never written through.

    Args:
        path: the file.
        content: its new content.
        parents: create missing parent folders.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _remove_abandoned(path)
        part.unlink(missing_ok=True)
        with part.open("xb") as file:  # "x": never through a symlink
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(content)
            file.flush()
            sync(file.fileno())
        part.replace(path)
    except BaseException:  # Ctrl-C too leaves no unfinished file behind
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _remove_abandoned(path: Path) -> None:
    """Remove what killed processes left of earlier writes to ``path``.

    The lock is that of a writer on another machine, which shares the folder but not process ids.
    """
    for part in path.parent.glob(f".{glob.escape(path.name)}.*{UNFINISHED}"):
        pid = part.name.removesuffix(UNFINISHED).rpartition(".")[2]
        if not pid.isdecimal() or _is_alive(int(pid[:10])):
            continue
        with contextlib.suppress(OSError):
            file = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink(missing_ok=True)
            finally:
                close_quietly(file)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def is_unfinished(path: Path) -> bool:
    """Return whether a file is what ``atomic_write`` leaves if its process is killed."""
    return path.name.startswith(".") and path.suffix == UNFINISHED


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left of atomic writes in ``folder``, whose lock is held."""
    with contextlib.suppress(FileNotFoundError):  # the folder itself was moved or removed
        for path in filter(is_unfinished, folder.iterdir()):
            path.unlink(missing_ok=True)


def user_cache_folder() -> Path:
    """Return the user's cache folder: ``$XDG_CACHE_HOME``, or ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()


def file_stamp(file: str | os.PathLike[str] | int) -> FileStamp | None:
    """Return what tells a file from another version of it, or None if there is no file.

    The time of the last change is not part of it: a hard link, by which edits keep files, sets it.

    Args:
        file: a path, or the descriptor of an open file.
    """
    try:
        found = os.stat(file)  # noqa: PTH116  faster than Path.stat, and called for every batch
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex digits.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
_AT_FDCWD, _EXCHANGE = -100, 2


def swap(one: Path, other: Path) -> None:
    """Exchange the names of two folders in the same parent, and sync their parent.

    Linux does it in one atomic step. Elsewhere it takes three renames: a kill between them may
    leave ``one`` missing, until ``recover_swap``.

    Raises:
        OSError: they cannot be renamed or synced; both keep their names.
    """
    _swap_names(one, other)
    try:
        for parent in {one.parent, other.parent}:
            sync_folder(parent)
    except OSError:
        _swap_names(one, other)
        raise


def _swap_names(one: Path, other: Path) -> None:
    if not _exchange(one, other):
        aside = _aside(one)
        one.rename(aside)
        try:
            other.rename(one)
        except OSError:
            aside.rename(one)
            raise
        aside.rename(other)


def recover_swap(one: Path) -> None:
    """Undo a swap of ``one`` that was killed between its renames.

    If another folder took its place already, the old one stays where the next edit removes it.
    """
    if not one.absolute().name:  # the root folder
        return
    one = one.resolve()  # follow a link to the swapped folder
    aside = _aside(one)
    if aside.is_dir() and not one.exists():
        aside.rename(one)


def sync_folder(folder: Path) -> None:
    """Wait until the names in ``folder`` are on disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        sync(fd)
    finally:
        os.close(fd)


def _aside(folder: Path) -> Path:
    whole = folder.absolute()  # "." has no name
    return whole.with_name(f".{whole.name}{EDITED}swapped")


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; return False if the system does not support it."""
    if sys.platform != "linux":
        return False
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))
