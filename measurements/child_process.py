"""Fork a child process for tests that kill it. The parent must have no threads."""

from __future__ import annotations

import os
from collections.abc import Callable


def fork_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked child and return its pid; the exit code is 1 if it raised."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child
