"""Flags of the cache of decoded frames; importing this imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from proctor.errors import UsageError
from proctor.fingerprint import PRESENTATION
from proctor.system.files import user_cache_folder

GB = 10**9


class CacheKind(Enum):
    """Where decoded frames are kept."""

    OFF = "off"
    RAM = "ram"
    """In the memory of this process, for those too that it hands the dataset to."""
    DISK = "disk"
    """In a folder, for every process on this machine and for later ones."""


@dataclass
class FrameCacheSettings:
    """What ``--dataset.cache*`` say; none of it changes a picture."""

    cache: CacheKind = field(
        default=CacheKind.OFF,
        metadata={
            "help": "keep decoded frames, at the size that is looked at: off, ram, or disk (shared "
            "and kept; see `proctor data cache`)"
        }
        | PRESENTATION,
    )
    cache_gb: float = field(
        default=50.0,
        metadata={"help": "most that is kept; on disk, what was not used longest goes first"}
        | PRESENTATION,
    )
    cache_dir: str | None = field(
        default=None,
        metadata={"help": "folder of the disk cache (default: ~/.cache/proctor/frames)"}
        | PRESENTATION,
    )

    def check_size(self) -> None:
        """Refuse a size that is none.

        Raises:
            UsageError: naming the flag.
        """
        if not 0 < self.cache_gb < 10**6:
            raise UsageError(
                f"--dataset.cache_gb must be above 0, got {self.cache_gb}", code="flag.out-of-range"
            )

    @property
    def most_bytes(self) -> int:
        """Return ``cache_gb`` in bytes; raises as ``check_size``."""
        self.check_size()
        return int(self.cache_gb * GB)

    @property
    def folder(self) -> Path:
        """Where the disk cache lies."""
        if self.cache_dir is not None:
            return Path(self.cache_dir).expanduser().absolute()
        return user_cache_folder() / "proctor" / "frames"
