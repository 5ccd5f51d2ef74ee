"""What may be uploaded: the files of a format, and settings without local paths."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

_FOLDERS = ("output_dir", "root", "cache_dir")
"""Settings that are folders of this machine: another machine has its own."""
_CHECKPOINTS = ("pretrained_path", "checkpoint_path")
"""Settings that are a Hub id or a local folder."""
_MOST_NAMED = 5


def other_files(folder: Path, patterns: Collection[str]) -> list[str]:
    """Return the files in ``folder`` that no pattern names, sorted.

    A file whose name, or that of a folder above it, begins with a dot needs a pattern that does so
    too.
    """
    return sorted(name for name in _files(folder) if not _is_named(name, patterns))


def exactly(names: Collection[str]) -> list[str]:
    """Return patterns that match these names only."""
    return [glob.escape(name) for name in names]


def named_few(names: Collection[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    shown = list(names)[:_MOST_NAMED]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def without_local_paths(value: Any) -> Any:
    """Return a setting, a map or a list with the last part of each local path instead of it.

    Of a checkpoint, that is the part from the training's folder on.
    """
    if isinstance(value, str):
        return _last_part(value) if _is_local(value) else value
    if isinstance(value, Mapping):
        return {
            key: None
            if isinstance(item, str)
            and (key in _FOLDERS or (key in _CHECKPOINTS and _is_local(item)))
            else without_local_paths(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_local_paths(item) for item in value]
    return value


def _last_part(path: str) -> str:
    parts = PurePosixPath(path).parts
    first = parts.index("checkpoints") - 1 if "checkpoints" in parts[1:] else len(parts) - 1
    return "/".join(parts[max(first, 0) :]).lstrip("/")


def _is_local(text: str) -> bool:
    """Return whether a setting names a place on this machine; a Hub id does not."""
    if text.startswith(("/", "~", "./", "../", "file:")):
        return True
    try:
        return "/" in text and Path(text).exists()
    except (OSError, ValueError):
        return False


def _files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.relative_to(folder).as_posix()


def _is_named(name: str, patterns: Collection[str]) -> bool:
    is_hidden = any(part.startswith(".") for part in name.split("/"))
    return any(
        fnmatch.fnmatchcase(name, pattern)
        and (not is_hidden or any(part.startswith(".") for part in pattern.split("/")))
        for pattern in patterns
    )
