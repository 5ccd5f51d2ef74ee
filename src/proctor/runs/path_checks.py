"""Check that nothing in a run folder blocks the paths that a run writes to."""

from __future__ import annotations

from pathlib import Path

from proctor.errors import RunFolderError, UsageError
from proctor.runs.journal import VIDEO_FOLDER
from proctor.system.links import refuse_links

WANDB_FOLDER = "wandb"
_SUFFIXES = (".json", ".jsonl", ".html", ".log", ".mp4", ".part")
"""Suffixes of the files that a run writes."""


def refuse_run_inside_dataset(run: Path, dataset: Path, flag: str) -> None:
    """Refuse a run folder that is the folder of the dataset of ``flag``, or inside it."""
    path, root = run.resolve(), dataset.resolve()
    if root in (path, *path.parents):
        raise UsageError(
            f"--output_dir={run} and {flag}={dataset} overlap: a dataset's folder holds no run; "
            "choose an --output_dir beside it",
            code="path.overlap",
        )


def refuse_blocked_paths(folder: Path) -> None:
    """Refuse a run folder with symlinks, or with a folder in place of a file.

    A write through a symlink would land outside the folder. A folder in place of a file would fail
    only at the end of the run. W&B's own folder is exempt: it contains symlinks to its logs.
    """
    refuse_links(folder, skipped=[WANDB_FOLDER])
    entries = [path for path in folder.iterdir() if path.name != WANDB_FOLDER]
    for entry in (*entries, *(folder / VIDEO_FOLDER).rglob("*")):
        if entry.is_dir() and entry.suffix in _SUFFIXES:
            raise RunFolderError(
                f"{entry} is a folder; a run writes a file of this name", code="run.path-blocked"
            )
    if (folder / VIDEO_FOLDER).is_file():
        raise RunFolderError(
            f"{folder / VIDEO_FOLDER} is a file; a run writes a folder of this name",
            code="run.path-blocked",
        )
