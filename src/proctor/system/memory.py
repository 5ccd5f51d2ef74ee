"""Large blocks that come and go thousands of times a second: kept, not given back each time."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Names of glibc's, in malloc.h."""
_MIB = 2**20


def keep_freed_memory() -> None:
    """Have the C library keep blocks of up to 64 MiB that are freed, for the next of that size.

    By default each picture in a message is mapped anew, page by page: half of the time that a wire
    takes. Elsewhere than with glibc nothing is changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 64 * _MIB)
        mallopt(_TRIM_THRESHOLD, 256 * _MIB)
        mallopt(_TOP_PAD, 16 * _MIB)
