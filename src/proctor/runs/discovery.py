"""Find run folders in and below a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from proctor.runs.folder import RUN_FILE

_MAX_DEPTH = 5
"""Levels of folders that are searched."""


def find_runs(root: Path, records: Sequence[str] = (RUN_FILE,)) -> list[Path]:
    """List the folders in and below ``root`` that contain one of ``records``, newest first."""
    patterns = ["/".join(["*"] * depth + [name]) for depth in range(_MAX_DEPTH) for name in records]
    found = []
    for file in (file for pattern in patterns for file in root.glob(pattern)):
        try:
            found.append((file.stat().st_mtime, file.parent))
        except OSError:
            continue  # removed meanwhile
    return [folder for _, folder in sorted(found, reverse=True)]
