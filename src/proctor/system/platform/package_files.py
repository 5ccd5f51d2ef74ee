"""Hashes of the installed packages that define a benchmark's episodes, without importing them.

A patched file, a fork on PYTHONPATH or an editable install has the same version number as the
package it replaces. All files of a package are hashed (code, models, tasks, meshes), except
compiled code, which differs between platforms. Hashing takes a second for the largest package, so
hashes of unchanged files are cached in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from proctor.system.caches import JsonCache

_VERSION_SUFFICES = ("numpy",)
"""Libraries that define no episode: their version is enough."""
_ADDITIONAL_PACKAGES = {"hf-libero": ("bddl",)}
"""Further packages that define episodes together with a distribution."""
_COMPILED = re.compile(r".*\.(pyc|pyo|so|so\.[0-9.]+|dylib|dll|pyd|a|lib|nbi|nbc)")
_SKIPPED_FOLDERS = ("__pycache__", ".git", ".ipynb_checkpoints")
_PACKAGE_FILE = re.compile(r"([A-Za-z_]\w*)(/__init__)?\.py,")
_SETTLED_S = 2.0
"""A file that changed more recently may change again within its time stamp."""
_CACHE = JsonCache("packages", most_entries=200)

_Listing = list[tuple[str, int, int, int, int]]


def package_hashes(distributions: Iterable[str]) -> dict[str, str]:
    """Return the hash of every package of these distributions, by package name.

    No package is imported. Distributions that are not installed are left out.

    Raises:
        OSError: a file of a package cannot be read.
    """
    names = [name for d in distributions if d not in _VERSION_SUFFICES for name in _packages_of(d)]
    kept = _CACHE.read()
    before = dict(kept)
    found = {}
    for name in sorted(set(names)):
        root = _root_of(name)
        if root is not None:
            found[name] = _hash_of(root, kept)
    if kept != before:
        _CACHE.write(kept)
    return found


def _packages_of(distribution: str) -> Iterator[str]:
    """Yield the import names of a distribution's packages."""
    yield from _ADDITIONAL_PACKAGES.get(distribution, ())
    guess = distribution.replace("-", "_")
    try:
        installed = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        yield guess
        return
    listed = (installed.read_text("top_level.txt") or "").split()
    recorded = installed.read_text("RECORD") or ""
    tops = {m[1] for m in map(_PACKAGE_FILE.match, recorded.splitlines()) if m is not None}
    yield from sorted(tops or set(listed) or {guess})  # an editable install lists no files


def _root_of(package: str) -> Path | None:
    """Return the folder or file that Python would import, or None."""
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
    """Return the hash of a package; ``kept`` is the cache, which gets new hashes."""
    listing = _listed(root)
    listed = json.dumps([str(root), listing])
    key = hashlib.sha256(listed.encode("utf-8", "surrogatepass")).hexdigest()
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
    """Return name, size, inode and times of every file that is hashed, sorted by name."""
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
