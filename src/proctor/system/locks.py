"""Keeping other processes out of a folder, also on a file system that knows no locks.

Where the kernel locks, the lock is its own and ends with its process. Network and user-space file
systems may not lock (ENOLCK, ENOSYS, EOPNOTSUPP); there a file says who works in the folder: making
one that must not be there yet is as atomic, but what a killed process left has to be recognised.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Protocol

from proctor.errors import FolderInUse
from proctor.system.files import read_regular_file

LOCK_FILE, CLAIM_FILE = ".lock", ".claim"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
_LOOK_S = 0.05
_held: set[Path] = set()
"""Claims of this process: one that names it and is none of these was left by an earlier one."""


class Lock(Protocol):
    """What keeps others out until it is released, or this process ends."""

    def release(self) -> None:
        """Let others in."""


def acquire_lock(folder: Path) -> Lock:
    """Take the lock of ``folder``.

    Raises:
        FolderInUse: another process has it.
        OSError: the folder cannot be written.
    """
    for last_look in (False, True):
        try:
            lock = try_lock(folder / LOCK_FILE)
        except OSError as error:
            if not is_locking_unsupported(error):
                raise
            return _Claim((folder / CLAIM_FILE).absolute())
        if lock is not None:
            return lock
        if not last_look:
            time.sleep(_LOOK_S)  # a page that only asks whether the folder is in use is gone then
    raise FolderInUse(
        f"{folder} is in use by another process; wait for it or choose another --output_dir"
    )


def is_locked(folder: Path) -> bool:
    """Tell whether a process works in ``folder``, without a trace in it."""
    try:
        fd = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # gone again at once; ``acquire_lock`` waits
    except BlockingIOError:
        return True
    except OSError as error:
        return is_locking_unsupported(error) and _is_claimed(folder / CLAIM_FILE)
    finally:
        os.close(fd)
    return False


def _is_claimed(claim: Path) -> bool:
    try:
        pid, host = read_regular_file(claim).decode().split()
    except (OSError, ValueError):
        return False
    return host != socket.gethostname() or claim.absolute() in _held or _is_alive(pid)


def try_lock(path: Path, *, shared: bool = False) -> Lock | None:
    """Take the kernel's lock of a file, for us alone or ``shared``; None where others have it.

    Raises:
        OSError: the file cannot be made, or its file system has no locks.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return _KernelLock(fd)


def is_locking_unsupported(error: OSError) -> bool:
    """Tell whether a lock was refused because the file system has none."""
    return error.errno in _NO_LOCKS


class _KernelLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.close(self._fd)


class _Claim:
    """A file that names the process that works in its folder."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            _remove_what_is_left(path)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        except FileExistsError:
            raise _in_use(path, "another process") from None
        with os.fdopen(fd, "w") as file:
            file.write(f"{os.getpid()} {socket.gethostname()}\n")
        self._path = path
        _held.add(path)

    def release(self) -> None:
        _held.discard(self._path)
        self._path.unlink(missing_ok=True)


def _remove_what_is_left(claim: Path) -> None:
    """Remove the claim of a process that has ended.

    Raises:
        FolderInUse: it may not have.
    """
    try:
        said = read_regular_file(claim)
        pid, host = said.decode().split()
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        raise _in_use(claim, "a process that did not say which") from None
    if host != socket.gethostname() or claim in _held or _is_alive(pid):
        raise _in_use(claim, f"process {pid} of {host}")
    # Of several who see this, one gets it; a later one would get the claim that the first then
    # made, and puts it back.
    aside = claim.with_name(f"{CLAIM_FILE}.{os.getpid()}")
    try:
        claim.rename(aside)
    except FileNotFoundError:
        return
    if read_regular_file(aside) != said:
        aside.rename(claim)
        raise _in_use(claim, "another process")
    aside.unlink()


def _is_alive(pid: str) -> bool:
    """Whether a process other than this one has the number ``pid``; in doubt, it has."""
    if not pid.isdecimal() or not 0 < int(pid[:10]) < 2**31:
        return True
    if int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _in_use(claim: Path, owner: str) -> FolderInUse:
    return FolderInUse(
        f"{claim.parent} is in use by {owner}; wait for it or choose another --output_dir (there "
        f"are no locks on its file system: if that process is gone, remove {claim})"
    )
