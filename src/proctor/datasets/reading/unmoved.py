"""Whether videos still lie where they did when a dataset was opened.

An edit in place, and the end of a recording, put another folder at the dataset's place. A file of
it that is opened only then shows other episodes at the times that the old table has.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from proctor.datasets.format.episodes import Episodes, read_episodes
from proctor.datasets.format.info import Info
from proctor.datasets.format.info_file import read_info
from proctor.errors import DatasetError
from proctor.features import Array


class Unmoved:
    """Remembers the folder that a table of episodes is of; may be handed to other processes."""

    def __init__(self, root: Path, info: Info, episodes: Episodes, chosen: Array) -> None:
        self._root, self._keys = root, info.video_keys
        self._episodes, self._chosen = episodes, chosen
        self._known = _identity(root)

    def check(self) -> None:
        """Check that what was read from its videos by now was read where it lies.

        Raises:
            DatasetError: the dataset was edited since it was opened.
        """
        found = _identity(self._root)
        if found == self._known:
            return
        now = read_episodes(self._root, read_info(self._root))
        if not self._is_where(now):
            raise DatasetError(f"{self._root} was edited while it was read: open it again")
        self._known = found

    def _is_where(self, now: Episodes) -> bool:
        chosen = self._chosen
        if len(now) <= chosen.max(initial=-1):
            return False
        if not np.array_equal(self._episodes.length[chosen], now.length[chosen]):
            return False
        return all(
            key in now.videos
            and np.array_equal(was.chunk[chosen], now.videos[key].chunk[chosen])
            and np.array_equal(was.file[chosen], now.videos[key].file[chosen])
            and np.array_equal(was.from_s[chosen], now.videos[key].from_s[chosen])
            for key, was in ((key, self._episodes.videos[key]) for key in self._keys)
        )


def _identity(root: Path) -> tuple[int, int, int] | None:
    """Return what another folder at the same place would not have; None where there is none."""
    try:
        found = os.stat(root)  # noqa: PTH116  once for every batch
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
