"""Refuses run folders in which something stands where a run will write."""

from __future__ import annotations

from pathlib import Path

from proctor.errors import RunFolderError
from proctor.runs.journal import VIDEO_FOLDER

WANDB_FOLDER = "wandb"
_SUFFIXES = (".json", ".jsonl", ".html", ".log", ".mp4", ".part")
"""Of the files that a run writes."""


def refuse_what_is_in_the_way(folder: Path) -> None:
    """Refuse a run folder in which something stands where a run will write.

    What is written through a link would land elsewhere; a folder in place of a file would be
    noticed only when the run has ended. What W&B keeps in its own folder is its own: it links its
    logs, and starts a new folder in it for every session.

    Raises:
        RunFolderError: naming what it is.
    """
    entries = [path for path in folder.iterdir() if path.name != WANDB_FOLDER]
    if not (folder / VIDEO_FOLDER).is_symlink():
        entries += (folder / VIDEO_FOLDER).rglob("*")
    for entry in entries:
        if entry.is_symlink():
            raise RunFolderError(
                f"{entry} is a link; what a run writes must lie in its folder", code="run.symlink"
            )
        if entry.is_dir() and entry.suffix in _SUFFIXES:
            raise RunFolderError(
                f"{entry} is a folder where a run keeps a file", code="run.path-blocked"
            )
    if (folder / VIDEO_FOLDER).is_file():
        raise RunFolderError(
            f"{folder / VIDEO_FOLDER} is a file where a run keeps a folder", code="run.path-blocked"
        )
