"""Work in a child that is forked, for whoever kills it. Who forks must have no threads."""

from __future__ import annotations

import os
from collections.abc import Callable


def forked(work: Callable[[], object]) -> int:
    """Do ``work`` in a child and return its number; its exit code is 1 where it raised."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child
