"""Standard streams that never stop the program if they cannot be written.

A reader closes the pipe (``| head -1``), the terminal is gone (a dropped ssh connection), a disk is
full, or the shell passed no stream at all (``2>&-``). Results are on disk, so a failed print must
not end a run.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, TextIO

_STDOUT, _STDERR = 1, 2


class _RobustFile(io.RawIOBase):
    """Writes to a descriptor until that fails, and discards everything after."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._terminal = os.isatty(fd)
        self.lost: str | None = None
        """Why output was lost; None also if the reader closed the pipe."""

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, content: memoryview) -> int:  # type: ignore[override]  # called by the buffer
        written = 0
        while written < len(content):
            try:
                written += os.write(self._fd, content[written:])
            except BlockingIOError:  # another process made the shared terminal non-blocking
                select.select([], [self._fd], [])
            except OSError as error:
                if error.errno != errno.EPIPE and not self._terminal:
                    self.lost = error.strerror
                _open_null_device(self._fd)
        return written


def make_streams_robust() -> None:
    """Make this process's standard streams robust; streams that the caller replaced stay.

    Call it before any file is opened: see ``open_closed_streams``.
    """
    open_closed_streams()
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  stays open
    if sys.stdout is sys.__stdout__:
        sys.stdout = _robust_stream(sys.stdout, _STDOUT)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _robust_stream(sys.stderr, _STDERR)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be valid UTF-8


def open_closed_streams() -> None:
    """Open standard descriptors that are closed, to the null device.

    Otherwise the next file or pipe would get the descriptor, and printed output, here or in a
    worker, would go there.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            _open_null_device(fd)


def report_lost_output() -> None:
    """Print one line if standard output could not be written."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    if isinstance(raw, _RobustFile) and raw.lost is not None:
        print(f"proctor: warning: standard output was not written: {raw.lost}", file=sys.stderr)


def _robust_stream(stream: TextIO | None, fd: int) -> TextIO:
    """Return a robust stream like ``stream``; Python sets a closed stream to None."""
    if stream is not None:
        stream.flush()
    raw: Any = _RobustFile(fd)  # typeshed accepts only its own raw file
    unbuffered = isinstance(getattr(stream, "buffer", None), io.RawIOBase)  # python -u
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding="utf-8" if stream is None else stream.encoding,
        errors="backslashreplace" if stream is None else stream.errors,
        line_buffering=bool(getattr(stream, "line_buffering", False)),
        write_through=bool(getattr(stream, "write_through", False)),
    )


def _open_null_device(fd: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != fd:
        os.dup2(null, fd)
        os.close(null)
    os.set_inheritable(fd, True)
