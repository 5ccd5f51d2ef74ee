"""On PYTHONPATH, this makes a Python whose file systems know no locks."""

from __future__ import annotations

import errno
import fcntl
import os


def _flock(fd: int, how: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


fcntl.flock = _flock  # type: ignore[assignment]
