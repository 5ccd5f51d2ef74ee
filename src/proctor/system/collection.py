"""Pauses Python's garbage collector while a command starts.

Imports create hundreds of thousands of objects that live as long as the process. The collector
would traverse them again and again: 0.3 s of a start with torch.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


class _Pause:
    used = active = False


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Switch the collector off during the block, once in a process, unless it is off already."""
    if gc.isenabled() and not _Pause.used:
        gc.disable()
        _Pause.used = _Pause.active = True
    try:
        yield
    finally:
        resume_collection()


def resume_collection() -> None:
    """Switch a paused collector on; it never traverses the objects that exist now."""
    if _Pause.active:
        _Pause.active = False
        gc.freeze()
        gc.enable()
