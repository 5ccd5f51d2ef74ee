"""LIBERO's assets (meshes, textures, scenes): list of files, folder, completeness."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from proctor.benchmarks.libero.tasks import STANDARD_SUITES
from proctor.errors import UsageError
from proctor.system import caches
from proctor.system.files import sha256_of

VARIABLE = "PROCTOR_LIBERO_ASSETS"
HUB_REPO = "lerobot/libero-assets"
_STANDARD_LIST = "assets.txt"
_FURTHER_LISTS = {"libero_90": "assets_90.txt"} | {
    f"{suite}_object": "assets_pro.txt" for suite in STANDARD_SUITES
}
"""Suites that need more than the standard ones: libero_90, and LIBERO-Pro's with other objects."""


@dataclass(frozen=True)
class AssetFile:
    """A file of the assets."""

    sha256: str
    size: int
    path: str


def needed_files(suites: Sequence[str]) -> tuple[AssetFile, ...]:
    """Return the files that ``suites`` need; some need more than the standard suites."""
    further = dict.fromkeys(_FURTHER_LISTS[suite] for suite in suites if suite in _FURTHER_LISTS)
    return tuple(file for name in (_STANDARD_LIST, *further) for file in listed_files(name))


@cache
def listed_files(name: str, package: str = "proctor.benchmarks.libero") -> tuple[AssetFile, ...]:
    """Return the files of the list ``name`` in a package of ours."""
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    rows = (line.split(" ", 2) for line in text.splitlines())
    return tuple(AssetFile(sha256, int(size), path) for sha256, size, path in rows)


def cache_folder() -> Path:
    """Return the cache folder of downloaded assets."""
    return caches.cache_folder("libero")


def find_assets(given: str | None, suites: Sequence[str] = STANDARD_SUITES) -> Path:
    """Return the assets' folder: ``given``, the environment variable's, or the cache.

    Raises:
        UsageError: a folder was named, and lacks files that ``suites`` need.
        FileNotFoundError: no folder was named, and the cache is not complete.
    """
    for source, folder in (("--env.assets", given), (VARIABLE, os.environ.get(VARIABLE))):
        if folder:
            check_complete(Path(folder).expanduser(), source, suites)
            return Path(folder).expanduser().absolute()
    if not files_to_download(suites):
        return cache_folder()
    raise FileNotFoundError(cache_folder())


def modified_files(given: str | None, suites: Sequence[str]) -> dict[str, str]:
    """Return the needed files that differ from the list, with their SHA-256.

    Only a folder that the user named is checked (half a second): the cache has no others.
    """
    named = given or os.environ.get(VARIABLE)
    if not named:
        return {}
    folder = Path(named).expanduser()
    there = [file for file in needed_files(suites) if (folder / file.path).is_file()]
    hashes = {file: sha256_of(folder / file.path) for file in there}
    return {file.path: found for file, found in hashes.items() if found != file.sha256}


def check_complete(folder: Path, source: str, suites: Sequence[str]) -> None:
    """Refuse a folder in which a file that ``suites`` need is missing or truncated."""
    missing = missing_files(folder, suites)
    if missing:
        raise UsageError(
            f"{source}: {folder} lacks {len(missing)} of {len(needed_files(suites))} files of "
            f"LIBERO's assets, as {missing[0].path}; get them from {HUB_REPO} on the Hub",
            code="env.missing-assets",
        )


def missing_files(folder: Path, suites: Sequence[str]) -> list[AssetFile]:
    """Return the files that ``suites`` need and that ``folder`` lacks or has truncated."""
    return incomplete_files(folder, needed_files(suites))


def incomplete_files(folder: Path, files: Sequence[AssetFile]) -> list[AssetFile]:
    """Return the files that ``folder`` lacks or has truncated."""
    return [file for file in files if _size(folder / file.path) != file.size]


def files_to_download(suites: Sequence[str]) -> list[AssetFile]:
    """Return the files that ``suites`` need and that the cache lacks or has with other content."""
    return wrong_files(cache_folder(), needed_files(suites))


def wrong_files(folder: Path, files: Sequence[AssetFile]) -> list[AssetFile]:
    """Return the files of a cache ``folder`` that are missing or have another content."""
    wrong = set(caches.wrong_files({folder / file.path: file.sha256 for file in files}))
    return [file for file in files if folder / file.path in wrong]


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
