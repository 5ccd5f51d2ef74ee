"""Files that someone else may have put there: only plain ones are read, and none too large."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

MOST_JSON = 64 * 2**20
"""Bytes of a file of settings or results."""
MOST_LINES = 2 * 2**30
"""Bytes of a journal: as many episodes as a run may have, each with a long error."""


_CANNOT_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


def sync(fd: int) -> None:
    """Wait until what was written is on the disk; a file system that cannot say is not asked again.

    Raises:
        OSError: the disk did not take it.
    """
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def read_plain(path: Path, most: int = MOST_JSON) -> bytes:
    """Return the bytes of a plain file of at most ``most`` bytes.

    Raises:
        OSError: there is none; it is a folder, a pipe that nobody writes to or a device that never
            ends; it is larger; or it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for its writer
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"{found.st_size} bytes, expected at most {most}", str(path))
        return file.read(found.st_size)  # not ``most``: that much would be set aside at once


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex digits.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
