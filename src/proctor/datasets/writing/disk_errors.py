"""Messages for full-disk and other write errors."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from proctor.errors import DatasetError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def explaining_disk_errors(root: Path, kept: str) -> Iterator[None]:
    """Turn an OSError into a message with the reason and what is ``kept``."""
    try:
        yield
    except OSError as error:
        raise DatasetError(
            f"{root} cannot be written: {write_failure_reason(error)}; {kept}",
            code="disk.write-failed",
        ) from error


def write_failure_reason(error: OSError) -> str:
    """Return why a write failed; Arrow's errors hold the error number only in their text."""
    full = error.errno in _FULL or any(f"[errno {number}]" in str(error) for number in _FULL)
    return "no space left" if full else error.strerror or str(error)
