"""Locks on folders, also on file systems without locks.

Where the kernel supports locks, its lock ends with the process. Network and user-space file systems
may not (ENOLCK, ENOSYS, EOPNOTSUPP). There a claim file names the process: creating it exclusively
is atomic too, but the claim of a killed process has to be recognised.
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
from proctor.system.files import close_quietly, read_regular_file

LOCK_FILE, CLAIM_FILE = ".lock", ".claim"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
_RETRY_S = 0.05
_held: set[Path] = set()
"""Claims of this process. Another claim with this process's id was left by an earlier process."""


class Lock(Protocol):
    """A lock that excludes other processes until it is released or this process ends."""

    def release(self) -> None:
        """Release the lock."""


def acquire_lock(folder: Path) -> Lock:
    """Acquire the lock of ``folder``.

    Raises:
        FolderInUse: another process holds it.
        OSError: the folder is not writable.
    """
    for is_last_try in (False, True):
        try:
            lock = try_lock(folder / LOCK_FILE)
        except OSError as error:
            if not is_locking_unsupported(error):
                raise
            return _Claim((folder / CLAIM_FILE).absolute())
        if lock is not None:
            return lock
        if not is_last_try:
            time.sleep(_RETRY_S)  # a report page that only checks the lock has released it by then
    raise FolderInUse(
        f"{folder} is in use by another process; wait for it or choose another --output_dir"
    )


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of ``folder``; changes nothing in the folder."""
    try:
        fd = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released at once; ``acquire_lock`` retries
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
    """Acquire the kernel's lock of a file, exclusive or ``shared``; return None if others hold it.

    Raises:
        OSError: the file cannot be created, or its file system has no locks.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        close_quietly(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return _KernelLock(fd)


def is_locking_unsupported(error: OSError) -> bool:
    """Return whether locking failed because the file system has no locks."""
    return error.errno in _NO_LOCKS


class _KernelLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        close_quietly(self._fd)


class _Claim:
    """A file that names the process that works in its folder."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            _remove_stale_claim(path)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        except FileExistsError:
            raise _in_use(path, "another process") from None
        try:
            with os.fdopen(fd, "w") as file:
                file.write(f"{os.getpid()} {socket.gethostname()}\n")
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._path = path
        _held.add(path)

    def release(self) -> None:
        _held.discard(self._path)
        self._path.unlink(missing_ok=True)


def _remove_stale_claim(claim: Path) -> None:
    """Remove the claim of a process that has ended."""
    try:
        content = read_regular_file(claim)
        pid, host = content.decode().split()
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        raise _in_use(claim, "an unknown process") from None
    if host != socket.gethostname() or claim in _held or _is_alive(pid):
        raise _in_use(claim, f"process {pid} of {host}")
    # Several processes may get here, and one removes the claim. A later one would remove the first
    # one's new claim instead, and puts it back.
    aside = claim.with_name(f"{CLAIM_FILE}.{os.getpid()}")
    try:
        claim.rename(aside)
    except FileNotFoundError:
        return
    if read_regular_file(aside) != content:
        aside.rename(claim)
        raise _in_use(claim, "another process")
    aside.unlink()


def _is_alive(pid: str) -> bool:
    """Return whether another process has the id ``pid``; True if unknown."""
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
