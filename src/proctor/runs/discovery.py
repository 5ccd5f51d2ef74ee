"""Find run folders in and below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from proctor.runs.folder import RUN_FILE

_MAX_DEPTH = 5
"""Levels of folders that are searched."""


def find_runs(root: Path, records: Sequence[str] = (RUN_FILE,)) -> list[Path]:
    """List the folders in and below ``root`` that contain one of ``records``, newest first.

    A link to such a folder is listed too. Links are not searched further: they may form cycles.
    """
    found = []
    for folder in _folders(root, _MAX_DEPTH):
        for name in records:
            try:
                found.append(((folder / name).stat().st_mtime, folder))
            except OSError:
                continue  # there is none, or it was removed meanwhile
    return [folder for _, folder in sorted(found, reverse=True)]


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield ``folder`` and the folders below it; one that cannot be read has none below."""
    yield folder
    if depth > 1:
        try:
            with os.scandir(folder) as entries:
                below = [(folder / one.name, one.is_symlink()) for one in entries if one.is_dir()]
        except OSError:
            return
        for path, is_link in below:
            yield from _folders(path, 1 if is_link else depth - 1)
