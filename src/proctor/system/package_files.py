"""Hashes of the packages that define a benchmark's episodes, as Python would import them now.

A patched file, a fork on PYTHONPATH or an editable install has the same version number as what it
replaces. All files of a package count (code, models, tasks, meshes), except what differs between
platforms: compiled code. Hashing takes a second for the largest; the hash of files that have not
changed since is kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from proctor.system.files import atomic_write, read_regular_file

_VERSION_SAYS_ALL = ("numpy",)
"""Libraries that define no episode."""
_WITH = {"hf-libero": ("bddl",)}
"""Packages that define episodes together with a distribution, beside its own."""
_COMPILED = re.compile(r".*\.(pyc|pyo|so|so\.[0-9.]+|dylib|dll|pyd|a|lib|nbi|nbc)")
_SKIPPED_FOLDERS = ("__pycache__", ".git", ".ipynb_checkpoints")
_PACKAGE_FILE = re.compile(r"([A-Za-z_]\w*)(/__init__)?\.py,")
_SETTLED_S = 2.0
"""A file that changed later than this before now may change again within its time stamp."""
_MOST_KEPT = 200
_MOST_BYTES = 2**20
_HASH = re.compile(r"[0-9a-f]{64}")

_Listing = list[tuple[str, int, int, int, int]]


def package_hashes(distributions: Iterable[str]) -> dict[str, str]:
    """Return the hash of every package of these distributions, by its name.

    Nothing is imported. A distribution that is not installed is left out.

    Raises:
        OSError: a file of a package cannot be read.
    """
    names = [name for d in distributions if d not in _VERSION_SAYS_ALL for name in _packages_of(d)]
    kept = _read_kept()
    before = dict(kept)
    found = {}
    for name in sorted(set(names)):
        root = _root_of(name)
        if root is not None:
            found[name] = _hash_of(root, kept)
    if kept != before:
        _write_kept(kept)
    return found


def _packages_of(distribution: str) -> Iterator[str]:
    """Yield the names under which a distribution's packages are imported."""
    yield from _WITH.get(distribution, ())
    guess = distribution.replace("-", "_")
    try:
        installed = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        yield guess
        return
    listed = (installed.read_text("top_level.txt") or "").split()
    recorded = installed.read_text("RECORD") or ""
    tops = {m[1] for m in map(_PACKAGE_FILE.match, recorded.splitlines()) if m is not None}
    yield from sorted(tops or set(listed) or {guess})  # an editable install records no files


def _root_of(package: str) -> Path | None:
    """Return the folder, or the file, that would be imported; None where there is none."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    if folders:
        return Path(folders[0])
    return Path(spec.origin) if spec.has_location and spec.origin is not None else None


def _hash_of(root: Path, kept: dict[str, str]) -> str:
    """Return the hash of a package; ``kept`` has those of unchanged files, and gets new ones."""
    listing = _listed(root)
    told = json.dumps([str(root), listing])
    key = hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()
    if key in kept:
        return kept[key]
    whole = hashlib.sha256()
    for name, *_ in listing:
        with (root / name if name else root).open("rb") as file:
            digest = hashlib.file_digest(file, "blake2b").hexdigest()
        whole.update(f"{name or root.name}\0{digest}\n".encode("utf-8", "surrogatepass"))
    latest = max((max(mtime, ctime) for *_, mtime, ctime in listing), default=0)
    if latest / 1e9 < time.time() - _SETTLED_S and _listed(root) == listing:
        kept[key] = whole.hexdigest()
    return whole.hexdigest()


def _listed(root: Path) -> _Listing:
    """Return name, size, inode and times of every file that counts, by name."""
    if root.is_file():
        return [("", *_state(root.stat()))]
    found: _Listing = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                if entry.is_dir():
                    if entry.name not in _SKIPPED_FOLDERS and not entry.is_symlink():
                        waiting.append(f"{name}/")
                elif entry.is_file() and not _COMPILED.fullmatch(entry.name):
                    found.append((name, *_state(entry.stat())))
    return sorted(found)


def _state(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _cache_file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "proctor" / "packages.json"


def _read_kept() -> dict[str, str]:
    try:
        kept: Any = json.loads(read_regular_file(_cache_file(), _MOST_BYTES))
    except (OSError, ValueError, RuntimeError, RecursionError):
        return {}
    if not isinstance(kept, dict):
        return {}
    return {k: v for k, v in kept.items() if isinstance(v, str) and _HASH.fullmatch(v)}


def _write_kept(kept: dict[str, str]) -> None:
    newest = dict(list(kept.items())[-_MOST_KEPT:])
    with contextlib.suppress(OSError, RuntimeError):  # it is hashed again next time
        atomic_write(_cache_file(), json.dumps(newest).encode())
