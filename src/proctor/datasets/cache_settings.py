"""Flags of the frame cache; importing this module imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar

from proctor.errors import UsageError
from proctor.fingerprint import PRESENTATION
from proctor.settings import setting
from proctor.system.caches import cache_folder

GB = 10**9


class CacheKind(Enum):
    """Where decoded frames are cached."""

    OFF = "off"
    RAM = "ram"
    """In shared memory of this process and of those that it passes the dataset to."""
    DISK = "disk"
    """In a folder, for all processes on this machine, now and later."""
    DEVICE = "device"
    """In the memory of a training's device; they are decoded into shared memory first."""


@dataclass
class FrameCacheSettings:
    """The flags ``--dataset.cache*``, which never change an image."""

    help_group: ClassVar[str] = "Frame cache"

    cache: CacheKind = setting(
        CacheKind.OFF,
        "cache decoded frames, at the policy's image size, in RAM, on disk (persistent; see "
        "proctor data cache), or on the training device, without loaders",
        PRESENTATION,
    )
    cache_gb: float = setting(
        50.0,
        "size limit of the cache in GB; the disk cache drops the least recently used frames",
        PRESENTATION,
        above=0,
        below=10**6,
    )
    cache_dir: str | None = setting(
        None, "folder of the disk cache (default: ~/.cache/proctor/frames)", PRESENTATION
    )

    @property
    def is_on(self) -> bool:
        """Whether decoded frames are cached."""
        return self.cache is not CacheKind.OFF

    @property
    def is_decoded_into_ram(self) -> bool:
        """Whether frames are decoded into shared memory, to stay there or for the device."""
        return self.cache in (CacheKind.RAM, CacheKind.DEVICE)

    def check_size(self) -> None:
        """Refuse an invalid size."""
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
        """Folder of the disk cache."""
        if self.cache_dir is not None:
            return Path(self.cache_dir).expanduser().absolute()
        return cache_folder("frames")
