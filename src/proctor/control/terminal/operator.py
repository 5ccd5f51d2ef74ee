"""The person at a terminal who calibrates and sets up devices."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from typing import TextIO

from proctor.control.terminal.keys import KeyHub
from proctor.errors import RobotError, strip_control_codes

_UP_AND_CLEAR = "\x1b[{}A\x1b[J"


class TerminalOperator:
    """Asks on standard output and reads answers from standard input, a terminal or a pipe.

    A table replaces the table before it on a terminal; elsewhere tables are not shown. ``keys`` is
    the reader of the terminal, if the session has one: it pauses while a line is typed.
    """

    def __init__(
        self, keys: KeyHub | None = None, *, input_fd: int = 0, output: TextIO | None = None
    ) -> None:
        self._keys = keys or KeyHub()
        self._pressed = self._keys.reader()
        self._fd = input_fd
        self._output = output or sys.stdout
        self._held = b""
        self._table_height = 0

    def tell(self, text: str) -> None:
        """Show a line."""
        self._table_height = 0
        print(strip_control_codes(text), file=self._output, flush=True)

    def ask(self, text: str) -> str:
        """Show a prompt, wait for a line and return it."""
        self._table_height = 0
        print(strip_control_codes(text).rstrip(), end=" ", file=self._output, flush=True)
        with self._keys.paused():
            while (line := self._line()) is None:
                self._read()
        return line

    def pressed_enter(self) -> bool:
        """Return whether Enter was pressed since the last call; never wait."""
        if self._keys.is_live:
            return "enter" in self._pressed.poll()
        while self._line_is_missing() and select.select([self._fd], [], [], 0)[0]:
            self._read()
        return self._line() is not None

    def show_table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show a table in place of the table shown before; only on a terminal."""
        if not self._output.isatty():
            return
        lines = [header, *rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        text = "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines
        )
        back = _UP_AND_CLEAR.format(self._table_height) if self._table_height else ""
        print(f"{back}{text}", file=self._output, flush=True)
        self._table_height = len(lines)

    def _line_is_missing(self) -> bool:
        return b"\n" not in self._held

    def _line(self) -> str | None:
        """Return the first line that was read, or None if it is not complete."""
        if self._line_is_missing():
            return None
        line, _, self._held = self._held.partition(b"\n")
        return line.decode(errors="replace").strip("\r")

    def _read(self) -> None:
        read = os.read(self._fd, 4096)
        if not read:
            print(file=self._output, flush=True)  # ends the line of the prompt
            raise RobotError(
                "a person is asked and the input has ended; run it in a terminal",
                code="robot.no-operator",
            )
        self._held += read
