"""Hard links to files that a dataset takes over, with copies where links are impossible."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from proctor.system.files import UNFINISHED, publish, sync_folder


def link_or_copy_all(paths: Iterable[tuple[Path, Path]]) -> None:
    """Put each file at a second path too; when this returns, the new names survive a power cut."""
    folders = set()
    for path, into in paths:
        hard_link_or_copy(path, into)
        folders.add(into.parent)
    for folder in folders:
        sync_folder(folder)


def hard_link_or_copy(path: Path, into: Path) -> None:
    """Put a file at ``into`` too: as a hard link if possible, otherwise as a copy.

    The content is on the disk when this returns. The name is on the disk after ``sync_folder``.

    Raises:
        FileExistsError: ``into`` exists.
        OSError: the copy cannot be written.
    """
    try:
        os.link(path, into)
    except FileExistsError:
        raise
    except OSError:  # another file system, one without hard links, or too many links
        unfinished = into.with_name(into.name + UNFINISHED)
        shutil.copyfile(path, unfinished)
        publish(unfinished, into)
