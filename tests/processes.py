"""The processes that another one has started."""

from __future__ import annotations

import psutil


def children_of(pid: int | None, word: str) -> list[psutil.Process]:
    """Return the living children of ``pid`` (this process if None) with ``word`` in their command.

    A child may end at any moment, and one that has ended and is not yet waited for has no command.
    """
    found = []
    for child in psutil.Process(pid).children():
        try:
            command = " ".join(child.cmdline())
        except psutil.NoSuchProcess:  # a zombie too
            continue
        if word in command:
            found.append(child)
    return found
