"""Files that an edit takes over unchanged: hard links or copies."""

from __future__ import annotations

import shutil
from pathlib import Path

from proctor.datasets.format.info import INFO_FILE
from proctor.datasets.writing.linking import hard_link_or_copy
from proctor.datasets.writing.staging import STAGING_FOLDER
from proctor.system.locks import CLAIM_FILE, LOCK_FILE

_LOCKS = (LOCK_FILE, CLAIM_FILE)
_WRITTEN = ("data", "videos", "images", *_LOCKS, STAGING_FOLDER, ".cache")
_WRITTEN_IN_META = ("info.json", "stats.json", "tasks", "episodes")
"""Files that an edit writes itself or leaves out, such as images of an unfinished episode."""
_REPACKED = ("data", "videos", *_LOCKS, INFO_FILE, "meta/episodes", f"{STAGING_FOLDER}/takes")
"""Files that a repacked dataset does not take over."""


def link_or_copy(path: Path, into: Path, *, linked: bool) -> None:
    """Put the file ``path`` at ``into`` too: as a hard link if ``linked`` and possible, or a copy.

    For a symbolic link, copy the content of its target.
    """
    into.parent.mkdir(parents=True, exist_ok=True)
    if linked and not path.is_symlink():
        hard_link_or_copy(path, into)
    else:
        shutil.copyfile(path, into)


def copy_other_files(root: Path, into: Path, *, linked: bool) -> None:
    """Take over files that are not part of the format: the card, notes, other tools' tables."""
    for path in root.iterdir():
        if path.name == "meta":
            for inner in path.iterdir():
                if not inner.name.startswith(_WRITTEN_IN_META):
                    _copy_tree(inner, into / "meta" / inner.name, linked=linked)
        elif path.name not in _WRITTEN:
            _copy_tree(path, into / path.name, linked=linked)


def _copy_tree(path: Path, into: Path, *, linked: bool) -> None:
    if path.is_file():
        link_or_copy(path, into, linked=linked)
    elif path.is_dir():
        for inner in path.iterdir():
            _copy_tree(inner, into / inner.name, linked=linked)


def link_unpacked_files(root: Path, into: Path) -> None:
    """Take over every file that repacking does not write."""
    skipped = {root / name for name in _REPACKED}
    folders = [root]
    while folders:
        for path in folders.pop().iterdir():
            target = into / path.relative_to(root)
            if path in skipped:
                continue
            if path.is_dir():
                target.mkdir(exist_ok=True)
                folders.append(path)
            else:
                link_or_copy(path, target, linked=True)
