"""LIBERO's meshes, textures and scenes: where they are, whether they are whole, how to get them."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from proctor.errors import MissingExtra, UsageError

VARIABLE = "PROCTOR_LIBERO_ASSETS"
HUB_REPO = "lerobot/libero-assets"
_MANIFEST = "libero_assets.txt"


@dataclass(frozen=True)
class AssetFile:
    """One file that the four standard suites are made of."""

    sha256: str
    size: int
    path: str


@cache
def manifest() -> tuple[AssetFile, ...]:
    """Return the files that the four standard suites need (libero_90 needs a few more)."""
    text = resources.files("proctor.benchmarks").joinpath(_MANIFEST).read_text(encoding="utf-8")
    rows = (line.split(" ", 2) for line in text.splitlines())
    return tuple(AssetFile(sha256, int(size), path) for sha256, size, path in rows)


def cache_folder() -> Path:
    """Return where downloaded assets are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "proctor" / "libero"


def find_assets(given: str | None) -> Path:
    """Return the assets' folder: the one given, the variable's, or a whole cached one.

    Raises:
        UsageError: a folder was named and is not whole.
        FileNotFoundError: none was named and none is cached.
    """
    for source, folder in (("--env.assets", given), (VARIABLE, os.environ.get(VARIABLE))):
        if folder:
            check_whole(Path(folder).expanduser(), source)
            return Path(folder).expanduser().absolute()
    if not _missing(cache_folder()):
        return cache_folder()
    raise FileNotFoundError(cache_folder())


def check_whole(folder: Path, source: str) -> None:
    """Refuse a folder that lacks a file of the four standard suites, or holds one cut short."""
    missing = _missing(folder)
    if missing:
        raise UsageError(
            f"{source}: {folder} lacks {len(missing)} of {len(manifest())} files of LIBERO's "
            f"assets, as {missing[0].path}; get them from {HUB_REPO} on the Hub"
        )


def download_assets() -> Path:
    """Download the assets into the cache, once, and compare every file with its checksum.

    Raises:
        UsageError: the Hub cannot be reached, or gave other bytes.
    """
    folder = cache_folder()
    print(f"LIBERO's assets are not here; downloading {HUB_REPO} to {folder}", file=sys.stderr)
    _fetch(folder)
    check_whole(folder, "download")
    for file in manifest():
        if hashlib.sha256((folder / file.path).read_bytes()).hexdigest() != file.sha256:
            raise UsageError(
                f"{folder / file.path} is not the file that LIBERO's results were made with; "
                f"delete {folder} and try again, or give --env.assets=DIR"
            )
    return folder


def _fetch(folder: Path) -> None:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise MissingExtra("huggingface_hub", "libero") from None
    try:
        snapshot_download(HUB_REPO, repo_type="dataset", local_dir=folder)
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise UsageError(
            f"LIBERO's assets cannot be downloaded ({type(error).__name__}); where there is a "
            f"network get {HUB_REPO} from the Hub, then give --env.assets=DIR or set {VARIABLE}"
        ) from None


def _missing(folder: Path) -> list[AssetFile]:
    return [file for file in manifest() if _size(folder / file.path) != file.size]


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
