"""Standard streams that last: what cannot be printed never stops what is being done.

A reader goes away (``| head -1``), a terminal is gone (a dropped ssh), a disk is full, or the shell
gave us no stream at all (``2>&-``). Results are on disk; a line for the terminal is worth no run.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, TextIO

_STDOUT, _STDERR = 1, 2


class _LastingFile(io.RawIOBase):
    """Writes to a descriptor until that fails, and to nowhere from then on."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._terminal = os.isatty(fd)
        self.lost: str | None = None
        """Why what was said is nowhere; None also when nobody was left to read it."""

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, content: memoryview) -> int:  # type: ignore[override]  # what a buffer hands on
        written = 0
        while written < len(content):
            try:
                written += os.write(self._fd, content[written:])
            except BlockingIOError:  # somebody who shares the terminal set it so
                select.select([], [self._fd], [])
            except OSError as error:
                if error.errno != errno.EPIPE and not self._terminal:
                    self.lost = error.strerror
                _open_nowhere(self._fd)
        return written


def make_streams_robust() -> None:
    """Make this process's standard streams last; streams that somebody has put there stay.

    To be called before anything is opened: see ``open_closed_streams``.
    """
    open_closed_streams()
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  it stays
    if sys.stdout is sys.__stdout__:
        sys.stdout = _lasting(sys.stdout, _STDOUT)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _lasting(sys.stderr, _STDERR)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be valid UTF-8


def open_closed_streams() -> None:
    """Open standard descriptors that are closed.

    Each would be given to the next file or pipe, and what is printed, here or in a worker, would go
    there.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            _open_nowhere(fd)


def report_lost_output() -> None:
    """Say in one line that what was printed could not be written, where that is so."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    if isinstance(raw, _LastingFile) and raw.lost is not None:
        print(f"proctor: warning: standard output was not written: {raw.lost}", file=sys.stderr)


def _lasting(stream: TextIO | None, fd: int) -> TextIO:
    """Return a stream like ``stream`` that lasts; None is what Python makes of a closed one."""
    if stream is not None:
        stream.flush()
    raw: Any = _LastingFile(fd)  # typeshed knows no raw file but its own
    unbuffered = isinstance(getattr(stream, "buffer", None), io.RawIOBase)  # python -u
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding="utf-8" if stream is None else stream.encoding,
        errors="backslashreplace" if stream is None else stream.errors,
        line_buffering=bool(getattr(stream, "line_buffering", False)),
        write_through=bool(getattr(stream, "write_through", False)),
    )


def _open_nowhere(fd: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != fd:
        os.dup2(nowhere, fd)
        os.close(nowhere)
    os.set_inheritable(fd, True)
