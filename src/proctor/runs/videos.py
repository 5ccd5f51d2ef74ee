"""What of a run's videos lies in its folder besides them: warnings, and what was not finished."""

from __future__ import annotations

from pathlib import Path

import msgspec

from proctor.errors import RunFolderError
from proctor.runs.journal import VIDEO_FOLDER
from proctor.system.files import UNFINISHED, read_regular_file

WARNINGS_FILE = f"{VIDEO_FOLDER}/warnings.json"


def remove_unfinished(folder: Path) -> None:
    """Remove what a process that was killed while it filmed has left in the run folder."""
    atomic_writes = f".*{UNFINISHED}"
    for pattern in (
        atomic_writes,
        f"{VIDEO_FOLDER}/{atomic_writes}",
        f"{VIDEO_FOLDER}/*/*{UNFINISHED}",
    ):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def read_warnings(folder: Path) -> dict[str, str]:
    """Return what is to be known of the run's videos, by their places in the run folder.

    Raises:
        RunFolderError: the file is damaged, or is none.
    """
    path = folder / WARNINGS_FILE
    try:
        return msgspec.json.decode(read_regular_file(path), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunFolderError(
            f"cannot read {path}: {error.strerror}", code="run.unreadable"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RunFolderError(f"{path} is damaged; remove it", code="run.damaged") from None
