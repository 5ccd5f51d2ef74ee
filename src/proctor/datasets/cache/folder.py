"""The cache folder: its entries, their users, and eviction of the least recently used.

<folder>/.lock             held briefly to add, open or remove an entry
<folder>/<key>/entry.json  description; written last, so an entry without it is invalid
               use.lock    shared lock of the processes that use the entry
               ...         content of the entry (``store.py``, ``column_cache.py``)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from proctor.datasets.cache_settings import GB
from proctor.errors import DatasetError
from proctor.system.files import atomic_write, read_regular_file
from proctor.system.links import links_below
from proctor.system.locks import LOCK_FILE, Lock, is_locking_unsupported, try_lock

FORMAT = 2
_CARD, _USE, _GONE = "entry.json", "use.lock", ".gone-"
_PATIENCE_S = 60.0


class CacheEntryInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of a cache entry, for listings and size limits."""

    dataset: str
    camera: str
    shape: tuple[int, int, int]
    frames: int
    planned_bytes: int
    """Size in bytes when it is complete."""
    format: int = FORMAT


@dataclass(frozen=True)
class CacheEntry:
    """A cache entry on the disk."""

    name: str
    card: CacheEntryInfo
    nbytes: int
    """Current size on the disk."""
    used_at: float
    """Time of the last opening; seconds since 1970."""
    in_use: bool


@dataclass(frozen=True)
class CacheEntryHandle:
    """An entry that this process uses; its lock prevents eviction."""

    folder: Path
    lock: Lock


def open_entry(
    folder: Path,
    name: str,
    card: CacheEntryInfo,
    most_bytes: int,
    is_whole: Callable[[Path], bool] = lambda place: True,
) -> CacheEntryHandle:
    """Open entry ``name``, creating it and evicting others if needed.

    An entry in a folder that is not ``is_whole`` is made anew. Processes that use the old one keep
    its files.
    """
    if card.planned_bytes > most_bytes:
        raise DatasetError(
            f"the frames of {card.camera} need {_gb(card.planned_bytes)} at "
            f"{card.shape[1]}x{card.shape[0]}, --dataset.cache_gb allows {_gb(most_bytes)}: raise "
            "it, use fewer episodes or smaller images, or --dataset.cache=off",
            code="cache.too-small",
        )
    with _locked(folder) as gone:
        place = folder / name
        if os.path.lexists(place) and (_has_links(place) or not is_whole(place)):
            _set_aside(folder, name, gone)
        _make_room(folder, name, card, most_bytes, gone)
        place.mkdir(exist_ok=True)
        known = _read_card(place)
        if known is None or known.planned_bytes < card.planned_bytes:
            atomic_write(place / _CARD, msgspec.json.encode(card))
        lock = try_lock(place / _USE, shared=True)
        assert lock is not None, "it is taken alone under the lock that we hold only"
        os.utime(place / _CARD)
        return CacheEntryHandle(place, lock)


def file_identity(path: Path) -> str:
    """Return a text that identifies a file and its version.

    It includes the change time (ctime), which cannot be set: a copy that keeps all else differs.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return "none"
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def list_entries(folder: Path) -> list[CacheEntry]:
    """Return the cache entries, the least recently used first."""
    if not folder.is_dir():
        return []
    with _locked(folder):
        return _entries(folder)


def remove_entries(
    folder: Path, names: Sequence[str] | None = None
) -> tuple[list[CacheEntry], list[CacheEntry]]:
    """Remove entries, or all; return the removed ones, and those that are in use and stay."""
    with _locked(folder) as gone:
        found = _entries(folder)
        if names is None:
            _set_strays_aside(folder, gone)
        known = {entry.name for entry in found}
        for name in names or ():
            if name not in known:
                raise DatasetError(
                    f"no frames are cached as {name!r} in {folder}", code="cache.not-found"
                )
        chosen = [entry for entry in found if names is None or entry.name in names]
        for entry in chosen:
            if not entry.in_use:
                _set_aside(folder, entry.name, gone)
    return [e for e in chosen if not e.in_use], [e for e in chosen if e.in_use]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[list[Path]]:
    """Hold the folder's lock; paths added to the yielded list are deleted after its release."""
    gone: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _wait_for(folder / LOCK_FILE)
        try:
            gone += folder.glob(f"{_GONE}*")  # leftovers of a killed process
            yield gone
        finally:
            lock.release()
    except OSError as error:
        if is_locking_unsupported(error):
            raise DatasetError(
                f"the file system of {folder} has no locks, which a shared cache needs: choose "
                "another with --dataset.cache_dir, or --dataset.cache=ram",
                code="cache.no-locks",
            ) from None
        raise DatasetError(
            f"the cache {folder} cannot be used ({error.strerror}): choose another with "
            "--dataset.cache_dir, or --dataset.cache=ram",
            code="cache.not-usable",
        ) from None
    finally:
        for path in gone:
            if path.is_symlink():
                path.unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)  # another process may remove it too


def _wait_for(path: Path) -> Lock:
    deadline = time.monotonic() + _PATIENCE_S
    while (lock := try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise DatasetError(
                f"another process has held {path} for {_PATIENCE_S:g} s; is it stopped?",
                code="cache.locked",
            )
        time.sleep(0.01)
    return lock


def _entries(folder: Path) -> list[CacheEntry]:
    found = []
    for place in folder.iterdir():
        card = None if place.name.startswith(".") else _read_card(place)
        if card is None:
            continue
        lock = try_lock(place / _USE)
        if lock is not None:
            lock.release()
        used_at = (place / _CARD).stat().st_mtime
        found.append(CacheEntry(place.name, card, _size(place), used_at, lock is None))
    return sorted(found, key=lambda entry: entry.used_at)


def _has_links(place: Path) -> bool:
    return place.is_symlink() or any(links_below(place))


def _make_room(
    folder: Path, name: str, card: CacheEntryInfo, most_bytes: int, gone: list[Path]
) -> None:
    """Evict the least recently used entries until ``card`` fits."""
    _set_strays_aside(folder, gone)
    others = [entry for entry in _entries(folder) if entry.name != name]
    # An entry in use may still grow to its planned size.
    taken = sum(max(e.nbytes, e.card.planned_bytes) if e.in_use else e.nbytes for e in others)
    for entry in others:
        if taken + card.planned_bytes <= most_bytes:
            return
        if not entry.in_use:
            _set_aside(folder, entry.name, gone)
            taken -= entry.nbytes
    if taken + card.planned_bytes > most_bytes:
        raise DatasetError(
            f"frames of other datasets in use take {_gb(taken)} of --dataset.cache_gb, "
            f"{_gb(card.planned_bytes)} more do not fit: raise it, or --dataset.cache=off",
            code="cache.too-small",
        )


def _set_strays_aside(folder: Path, gone: list[Path]) -> None:
    """Remove folders that are not entries: leftovers of a kill or of another version."""
    for place in folder.iterdir():
        if place.is_dir() and not place.name.startswith(".") and _read_card(place) is None:
            lock = try_lock(place / _USE)
            if lock is not None:
                lock.release()
                _set_aside(folder, place.name, gone)


def _set_aside(folder: Path, name: str, gone: list[Path]) -> None:
    aside = folder / f"{_GONE}{os.getpid()}-{time.monotonic_ns()}"
    (folder / name).rename(aside)
    gone.append(aside)


def _read_card(place: Path) -> CacheEntryInfo | None:
    """Return the description of an entry, or None if it is missing or of another format."""
    try:
        card = msgspec.json.decode(read_regular_file(place / _CARD), type=CacheEntryInfo)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return card if card.format == FORMAT else None


def _size(place: Path) -> int:
    """Return the bytes that are stored, as the files are sparse."""
    return sum(path.stat().st_blocks * 512 for path in place.iterdir())


def _gb(nbytes: int) -> str:
    return f"{nbytes / GB:.1f} GB"
