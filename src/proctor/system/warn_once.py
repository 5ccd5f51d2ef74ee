"""Warnings that would repeat with every reply: each line is printed once."""

from __future__ import annotations

import sys

from proctor.errors import strip_control_codes

_MAX_LINES = 20
"""Largest number of lines; a third party's text may differ every time."""


class WarnOnce:
    """Prints a line to standard error unless it has printed it before."""

    def __init__(self) -> None:
        self._printed: set[str] = set()

    def warn(self, line: str) -> None:
        """Print a line."""
        if line not in self._printed and len(self._printed) < _MAX_LINES:
            self._printed.add(line)
            print(strip_control_codes(line), file=sys.stderr, flush=True)
