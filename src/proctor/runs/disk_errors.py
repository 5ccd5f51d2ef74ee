"""Messages for full-disk errors: what was kept, and how to continue."""

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
def explaining_disk_errors(kept_text: Callable[[str], str]) -> Iterator[None]:
    """Add to a ``WriteFailed`` of the block what was kept and how to continue.

    Args:
        kept_text: returns that text, given the advice about the disk.
    """
    try:
        yield
    except WriteFailed as error:
        raise RunFolderError(
            f"{error}; {kept_text(disk_error_advice(error.__cause__))}", code=error.code
        ) from error.__cause__


def disk_error_advice(error: BaseException | None) -> str:
    """Return the advice for a write error: make room, or check the disk."""
    full = isinstance(error, OSError) and error.errno in _FULL
    return "make room" if full else "see to the disk"


def kept_episodes_text(folder: Path, planned: int, mend: str) -> str:
    """Return how many episodes of a run are kept, and how to continue."""
    if not (folder / RUN_FILE).exists():
        if not folder.is_dir():
            return (
                f"{folder} is no longer there: if it was moved, its episodes are with it, and "
                "--resume with the new --output_dir continues; otherwise run again"
            )
        return f"{folder} holds no episodes: {mend}, then run again, or choose another --output_dir"
    done = len(read_journal(folder).rows)
    what = f"{done} of {planned} episodes are kept in {folder}"
    return f"{what}: {mend}, then run again with --resume"


@contextlib.contextmanager
def ignoring_later_disk_errors() -> Iterator[None]:
    """Suppress disk errors in the block if a disk error is already ending the run."""
    ended = sys.exception()
    try:
        yield
    except RunFolderError:
        if not isinstance(ended, RunFolderError):
            raise
