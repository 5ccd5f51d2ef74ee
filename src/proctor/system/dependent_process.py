"""Processes that end with another one, also with one that is killed.

    python -m proctor.system.dependent_process MODULE [ARGUMENT ...]

runs a module like ``python -m``, in a process that ends when its standard input ends: the caller
holds the other end of that pipe. The module itself reads an empty standard input.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from multiprocessing import connection
from typing import Any


def exit_at_end_of(sentinel: Any) -> None:
    """Start a thread that ends this process when ``sentinel`` becomes readable."""

    def wait_and_exit() -> None:
        connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=wait_and_exit, daemon=True).start()


def main() -> None:
    """Run the module that the arguments name."""
    exit_at_end_of(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
