"""The staging area of a dataset: its private folder ``.proctor/``, which readers ignore.

    .proctor/
      takes/                     staged episodes that are being recorded
      publishing.json            files of an append in progress; removed when it is complete
      levels/<camera>.u32        pixel counts [C, 256] of each episode's sampled images

LeRobot stores only a few quantiles of each episode's images, from which the dataset's quantiles
cannot be computed. From pixel counts they can. Another tool may have edited the dataset since:
counts are used only if they match the episode's statistics.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from proctor.datasets.numbers.statistics import N_LEVELS, FeatureStats
from proctor.datasets.writing.file_allocation import FileAllocation, FileNumber
from proctor.errors import DatasetError, FolderInUse
from proctor.features import Array
from proctor.system.files import UNFINISHED, atomic_write, read_regular_file, sync_folder
from proctor.system.links import refuse_links
from proctor.system.locks import CLAIM_FILE, LOCK_FILE, Lock, acquire_lock

STAGING_FOLDER = ".proctor"
RECORDING_LOG = f"{STAGING_FOLDER}/recording.jsonl"
"""Log of the sessions with a robot that recorded the dataset (control/recording/log.py)."""
_MOST = 2**40


class StagingArea:
    """The private folder of the dataset in ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / STAGING_FOLDER
        self._publishing = self._folder / "publishing.json"
        self.takes = self._folder / "takes"

    def intend(self, places: FileAllocation) -> None:
        """Store which files an append will create, before it creates them."""
        said = {
            "episode": places.episode,
            "data": places.data,
            "episodes": places.episodes,
            "videos": places.videos,
        }
        atomic_write(self._publishing, json.dumps(said).encode())

    def intended(self) -> FileAllocation | None:
        """Return the files of an unfinished append, or None."""
        try:
            said = json.loads(read_regular_file(self._publishing))
            return FileAllocation(
                _whole(said["episode"]),
                [_number(place) for place in said["data"]],
                _number(said["episodes"]),
                {key: [_number(p) for p in places] for key, places in said["videos"].items()},
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise DatasetError(
                f"{self._publishing} is damaged; remove it and run: "
                f"proctor data check {self._root}",
                code="dataset.damaged-file",
            ) from None

    def forget(self) -> None:
        """Remove the record of an append that was completed or undone."""
        self._publishing.unlink(missing_ok=True)

    def write_levels(self, key: str, episode: int, counts: Array) -> None:
        """Store the pixel counts [C, 256] of an episode's sampled images at its position."""
        path = self._levels(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        with path.open("r+b") as file:
            file.truncate(episode * counts.size * 4)  # missing episodes read as zeros
            file.seek(0, 2)
            file.write(counts.astype("<u4").tobytes())

    def read_levels(self, key: str, channels: int) -> Array:
        """Return all stored pixel counts, [episodes, C, 256]."""
        try:
            content = read_regular_file(self._levels(key), most=2**32)
        except OSError:
            return np.zeros((0, channels, N_LEVELS), np.uint32)
        size = channels * N_LEVELS * 4
        whole = content[: len(content) // size * size]
        return np.frombuffer(whole, "<u4").reshape(-1, channels, N_LEVELS)

    def clear(self) -> None:
        """Remove staged episodes and unfinished files of a killed recorder."""
        shutil.rmtree(self.takes, ignore_errors=True)
        for folder in ("meta", "data", "videos", STAGING_FOLDER):
            for part in (self._root / folder).rglob(f"*{UNFINISHED}"):
                part.unlink(missing_ok=True)

    def leave(self) -> None:
        """Remove the folders that only a writer needs, if they are empty."""
        for folder in (self.takes, self._folder):
            with contextlib.suppress(OSError):  # not empty: pixel counts stay
                folder.rmdir()

    def _levels(self, key: str) -> Path:
        return self._folder / "levels" / f"{key}.u32"


def counts_match_stats(counts: Array, stats: FeatureStats) -> bool:
    """Tell whether pixel counts and ``stats`` describe the same images."""
    total, seen = counts.sum(axis=1), counts > 0
    if not (total > 0).all():
        return False
    found = {
        "min": seen.argmax(axis=1),
        "max": N_LEVELS - 1 - seen[:, ::-1].argmax(axis=1),
        "mean": counts @ np.arange(N_LEVELS) / total,
    }
    return all(
        np.allclose(levels / 255, stats[name].ravel(), rtol=1e-5, atol=1e-7)
        for name, levels in found.items()
    )


def lock_dataset(root: Path) -> Lock:
    """Take the lock of ``root``, which excludes other writers and editors."""
    refuse_links(root)
    try:
        return acquire_lock(root)
    except FolderInUse:
        raise DatasetError(
            f"{root} is being recorded or edited by another process; wait until it ends",
            code="dataset.in-use",
        ) from None


def unlock_dataset(root: Path, lock: Lock) -> None:
    """Release the lock of ``root`` and remove its files, if the disk still permits it."""
    remove_lock_files(root)
    lock.release()


def remove_lock_files(root: Path) -> None:
    """Remove the files of a lock; without a holder they lock nothing."""
    for name in (LOCK_FILE, CLAIM_FILE):
        with contextlib.suppress(OSError):
            (root / name).unlink(missing_ok=True)


def has_content(root: Path) -> bool:
    """Tell whether a folder has content beyond the leftovers of a failed ``create``."""
    return any(
        path.name not in (STAGING_FOLDER, LOCK_FILE) and not _is_unbegun(path)
        for path in root.iterdir()
    )


def _is_unbegun(path: Path) -> bool:
    """Tell whether ``path`` is a ``meta`` folder without finished files."""
    if path.name != "meta" or not path.is_dir():
        return False
    return all(entry.name.endswith(UNFINISHED) for entry in path.iterdir())


def make_folders(root: Path, paths: Iterable[Path]) -> None:
    """Create the folders of files below ``root``, durably."""
    for path in paths:
        missing = [folder for folder in path.parents if root in folder.parents]
        for folder in reversed(missing):
            if not folder.is_dir():
                folder.mkdir()
                sync_folder(folder.parent)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError(value)
    return value


def _number(value: list[object]) -> FileNumber:
    chunk, file = value
    return _whole(chunk), _whole(file)
