"""Files beside a run's videos: warnings about them, and unfinished files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from proctor.errors import RunFolderError
from proctor.runs.journal import VIDEO_FOLDER
from proctor.system import files
from proctor.system.files import UNFINISHED, read_regular_file

WARNINGS_FILE = f"{VIDEO_FOLDER}/warnings.json"


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files of a process that was killed."""
    files.remove_unfinished(folder)
    for pattern in (f"{VIDEO_FOLDER}/.*{UNFINISHED}", f"{VIDEO_FOLDER}/*/*{UNFINISHED}"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def read_video_warnings(folder: Path) -> dict[str, str]:
    """Return the warnings about a run's videos, by the videos' paths in the run folder."""
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
