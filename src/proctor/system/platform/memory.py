"""Keep freed large blocks in the C library's allocator, instead of returning them to the system."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Parameters of glibc's ``mallopt``, from malloc.h."""
_MIB = 2**20


def keep_freed_memory() -> None:
    """Make malloc keep freed blocks of up to 64 MiB, for messages with images.

    By default each image in a message is mapped anew, page by page, which takes half of a message's
    time. Without glibc nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 64 * _MIB)
        mallopt(_TRIM_THRESHOLD, 256 * _MIB)
        mallopt(_TOP_PAD, 16 * _MIB)
