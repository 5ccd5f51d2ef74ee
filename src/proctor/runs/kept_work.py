"""What is kept where the disk takes nothing more, in words."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from proctor.errors import RunFolderError, WriteFailed
from proctor.runs.folder import RUN_FILE
from proctor.runs.journal import read_journal

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def explaining_kept_work(kept: Callable[[str], str]) -> Iterator[None]:
    """Say of a file that the disk did not take what is kept, and how to go on.

    Args:
        kept: returns both, given what is to be done about the disk.

    Raises:
        RunFolderError: instead of a ``WriteFailed``.
    """
    try:
        yield
    except WriteFailed as error:
        raise RunFolderError(
            f"{error}; {kept(disk_error_advice(error.__cause__))}", code=error.code
        ) from error.__cause__


def disk_error_advice(error: BaseException | None) -> str:
    """Return what is to be done about a disk that did not take something."""
    full = isinstance(error, OSError) and error.errno in _FULL
    return "make room" if full else "see to the disk"


def kept_episodes(folder: Path, planned: int, mend: str) -> str:
    """Return how many episodes of a run are kept, and how to go on."""
    if not (folder / RUN_FILE).exists():
        gone = "is gone with all that was in it" if not folder.is_dir() else "holds no episodes"
        return f"{folder} {gone}: {mend}, then run again, or choose another --output_dir"
    done = len(read_journal(folder).rows)
    what = f"{done} of {planned} episodes are kept in {folder}"
    return f"{what}: {mend}, then run again with --resume"


@contextlib.contextmanager
def after_first_error() -> Iterator[None]:
    """Do what the end of a run does; where the disk ended it, what it does not take is no news."""
    ended = sys.exception()
    try:
        yield
    except RunFolderError:
        if not isinstance(ended, RunFolderError):
            raise
