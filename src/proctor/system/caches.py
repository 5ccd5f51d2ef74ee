"""The user's caches: a kept file proves itself before it is used, or is made anew.

A file's name ends with a digest of its content and of its key, so one rename publishes both. Files
with a known digest are compared with it once: their stamps are kept, as hashing takes long.
Caches never fail what they speed up: where the disk refuses, the value is computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.system.files import (
    MAX_JSON_BYTES,
    atomic_write,
    read_regular_file,
    user_cache_folder,
)

_SAMPLED_ABOVE, _BLOCKS, _BLOCK_BYTES = 64 * 2**20, 1024, 64 * 2**10
"""Files larger than this are sampled: that many blocks of that size, evenly spaced."""
_SETTLED_S = 2.0
"""Files that changed this recently may change again without another time of change."""
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


def cache_folder(name: str) -> Path:
    """Return the folder of the cache ``name`` of this user."""
    return user_cache_folder() / "proctor" / name


def find(folder: Path, key: str, suffix: str) -> Path | None:
    """Return the file of ``key`` if its content is what was published; remove others of the key."""
    for path in folder.glob(f"{key}-*{suffix}"):
        with contextlib.suppress(OSError):  # removed meanwhile
            if path.name == _name(path, key, suffix) and not path.is_symlink():
                return path
            path.unlink()
    return None


def publish(part: Path, key: str, suffix: str) -> Path:
    """Rename a complete file to the name by which ``find`` knows it, and return that.

    Raises:
        OSError: the folder cannot be written.
    """
    path = part.with_name(_name(part, key, suffix))
    part.replace(path)
    return path


def _name(path: Path, key: str, suffix: str) -> str:
    """Return the name of a file with the content of ``path``.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(f"{key} {size}".encode())
    with path.open("rb") as file:
        if size <= _SAMPLED_ABOVE:
            for content in iter(lambda: file.read(2**20), b""):
                digest.update(content)
        else:
            for number in range(_BLOCKS):
                file.seek((size - _BLOCK_BYTES) * number // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK_BYTES))
    return f"{key}-{digest.hexdigest()[:32]}{suffix}"


@dataclass(frozen=True)
class JsonCache:
    """Small values by key, in one file of the user's cache with a digest of its content."""

    name: str
    most_entries: int
    """The entries that were added first are removed first."""
    version: int = 1

    @property
    def file(self) -> Path:
        """The file that holds the entries."""
        return cache_folder(f"{self.name}.json")

    def read(self) -> dict[str, Any]:
        """Return the entries; none if the file is missing, damaged or of another version."""
        try:
            kept = json.loads(read_regular_file(self.file, MAX_JSON_BYTES))
            entries: dict[str, Any] = dict(kept["entries"])
            return entries if kept["digest"] == self._digest(entries) else {}
        except _UNREADABLE:
            return {}

    def write(self, entries: Mapping[str, Any]) -> None:
        """Replace the entries; another process's addition since ``read`` is lost."""
        newest = dict(list(entries.items())[-self.most_entries :])
        content = {"digest": self._digest(newest), "entries": newest}
        with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home folder
            atomic_write(self.file, json.dumps(content).encode())

    def _digest(self, entries: Mapping[str, Any]) -> str:
        return hashlib.sha256(
            f"{self.name} {self.version} {json.dumps(entries)}".encode()
        ).hexdigest()


_VERIFIED = JsonCache("verified", most_entries=50_000)
"""Path -> stamp and digest of files that were hashed."""


def content_digest(like: str, size: int) -> Any:
    """Return an empty hash for content of ``size`` bytes: SHA-256, or git's blob id (40 digits)."""
    if len(like) == len(hashlib.sha256().hexdigest()):
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def _digest_of(path: Path, like: str) -> str:
    with path.open("rb") as file:
        digest = content_digest(like, os.fstat(file.fileno()).st_size)
        while piece := file.read(2**20):
            digest.update(piece)
    return str(digest.hexdigest())


def wrong_files(expected: Mapping[Path, str]) -> list[Path]:
    """Return the files that are missing or whose digest is not the expected one.

    Digests are SHA-256 or git's blob ids, as ``content_digest`` makes them.

    A file is hashed once; then its inode, size and times tell whether it changed. The time of
    change (ctime) cannot be set, so a copy that keeps all else differs.
    """
    kept = _VERIFIED.read()
    before, wrong = dict(kept), []
    for path, digest in expected.items():
        try:
            found = path.stat()
            state = [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
            if kept.get(str(path)) == [*state, digest]:
                continue
            is_right = _digest_of(path, digest) == digest
        except OSError:
            is_right = False
        if not is_right:
            wrong.append(path)
        elif found.st_ctime_ns / 1e9 < time.time() - _SETTLED_S:
            kept[str(path)] = [*state, digest]
    if kept != before:
        _VERIFIED.write(kept)
    return wrong
