"""``proctor data cache``: list and remove the decoded frames of ``--dataset.cache=disk``."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from proctor.config.flags.command import CommandConfig, argument
from proctor.errors import UsageError, strip_control_codes
from proctor.settings import setting

if TYPE_CHECKING:
    from proctor.datasets.cache.folder import CacheEntry


@dataclass(kw_only=True)
class DataCacheCommand(CommandConfig):
    """List or clear the disk cache of decoded frames.

    --dataset.cache=disk keeps decoded frames. Each line is one camera of a dataset at one image
    size. The least recently used entry is first; it is also the first to be evicted when
    --dataset.cache_gb is reached.
    """

    names: list[str] = field(
        metadata=argument("NAME", "entries to remove with --clear (default: all)", least=0)
    )
    clear: bool = setting(False, "remove the named entries, except those that a process uses")
    cache_dir: str | None = setting(
        None,
        "folder of the cache, as in --dataset.cache_dir (default: ~/.cache/proctor/frames)",
        placeholder="DIR",
    )

    def validate(self) -> None:
        """Refuse names without --clear."""
        if self.names and not self.clear:
            raise UsageError(
                "names say what to remove: proctor data cache NAME --clear", code="flag.missing"
            )

    def run(self) -> int:
        """List or remove entries and return the exit code."""
        from proctor.datasets.cache.folder import list_entries, remove_entries
        from proctor.datasets.cache_settings import FrameCacheSettings

        folder = FrameCacheSettings(cache_dir=self.cache_dir).folder
        if not self.clear:
            entries = list_entries(folder)
            print(f"{folder}: {_total(entries, 'kept')}")
            for entry in entries:
                print(_line(entry))
            return 0
        removed, stays = remove_entries(folder, self.names or None)
        print(f"{folder}: {_total(removed, 'removed')}")
        for entry in stays:
            print(f"{_line(entry)}, stays")
        return 0


def _total(entries: list[CacheEntry], what: str) -> str:
    return f"{len(entries)} {what}, {_size(sum(entry.nbytes for entry in entries))}"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.2f} MB"


def _line(entry: CacheEntry) -> str:
    height, width, _ = entry.card.shape
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used_at))
    words = f"{entry.card.dataset} {entry.card.camera} {width}x{height}"
    state = "in use" if entry.in_use else f"used {used}"
    return strip_control_codes(f"  {entry.name}  {_size(entry.nbytes):>9}  {words}, {state}")
