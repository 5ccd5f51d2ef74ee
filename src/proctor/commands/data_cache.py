"""``proctor data cache``: which decoded frames are kept, and how to be rid of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from proctor.errors import UsageError, strip_control_codes

if TYPE_CHECKING:
    from proctor.datasets.cache.folder import CacheEntry

_USAGE = """\
proctor data cache [NAME ...] [--clear] [--cache_dir=DIR]

Lists the frames that --dataset.cache=disk keeps: a line for each camera of a dataset at one size,
the least recently used first, which is the first to go when --dataset.cache_gb is reached.

  --clear          remove them, or those named; what a process uses stays
  --cache_dir=DIR  the folder, where --dataset.cache_dir named another than ~/.cache/proctor/frames
"""


def run(words: list[str]) -> int:
    """Run the verb and return its exit code."""
    from proctor.config.flags import check_known, split_argv
    from proctor.datasets.cache.folder import list_entries, remove_entries
    from proctor.datasets.cache_settings import FrameCacheSettings

    names, flags = split_argv(words, {"help", "clear"})
    check_known(flags, [], ("help", "clear", "cache_dir"))
    if "help" in flags:
        print(_USAGE, end="")
        return 0
    clear = flags.get("clear", "false").lower()
    if clear not in ("true", "false"):
        raise UsageError(f"--clear is true or false, not {clear!r}")
    folder = FrameCacheSettings(cache_dir=flags.get("cache_dir")).folder
    if clear == "false":
        if names:
            raise UsageError("names say what to remove: proctor data cache NAME --clear")
        entries = list_entries(folder)
        print(f"{folder}: {_total(entries, 'kept')}")
        for entry in entries:
            print(_line(entry))
        return 0
    removed, stays = remove_entries(folder, names or None)
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
