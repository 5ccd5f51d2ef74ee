"""Lines for the user that would come again with every answer: each is printed once."""

from __future__ import annotations

import sys

from proctor.errors import strip_control_codes

_MOST_SAID = 20
"""What others say may be another line every time."""


class WarnOnce:
    """Prints a line to the error stream, unless it has before."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def warn(self, line: str) -> None:
        """Print a line."""
        if line not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(line)
            print(strip_control_codes(line), file=sys.stderr, flush=True)
