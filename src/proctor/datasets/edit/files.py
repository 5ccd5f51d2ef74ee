"""Files that an edit leaves as they are: linked or copied, never written again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from proctor.datasets.writing.staging import WORKSHOP
from proctor.system.locks import CLAIM_FILE, LOCK_FILE

_MADE_ANEW = ("data", "videos", "images", LOCK_FILE, CLAIM_FILE, WORKSHOP, ".cache")
_MADE_ANEW_IN_META = ("info.json", "stats.json", "tasks", "episodes")
"""What of a dataset an edit writes itself, or (pictures of an unfinished take) leaves out."""


def link_or_copy(path: Path, into: Path, *, linked: bool) -> None:
    """Put the file ``path`` at ``into`` too: ``linked``, where it can be, else a copy of it."""
    into.parent.mkdir(parents=True, exist_ok=True)
    if linked and not path.is_symlink():
        try:
            os.link(path, into)
        except OSError:  # another file system, one that knows no links, or too many of them
            pass
        else:
            return
    shutil.copyfile(path, into)


def copy_other_files(root: Path, into: Path, *, linked: bool) -> None:
    """Put there what is no part of the format: the card, notes, tables of others."""
    for path in root.iterdir():
        if path.name == "meta":
            for inner in path.iterdir():
                if not inner.name.startswith(_MADE_ANEW_IN_META):
                    _take_over_all(inner, into / "meta" / inner.name, linked=linked)
        elif path.name not in _MADE_ANEW:
            _take_over_all(path, into / path.name, linked=linked)


def _take_over_all(path: Path, into: Path, *, linked: bool) -> None:
    if path.is_file():
        link_or_copy(path, into, linked=linked)
    elif path.is_dir():
        for inner in path.iterdir():
            _take_over_all(inner, into / inner.name, linked=linked)
