"""Reader of the JSON-lines logs in run folders: journal, sessions, training log, ledger."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from proctor.errors import RunFolderError
from proctor.system.files import MAX_JOURNAL_BYTES, MAX_JSON_BYTES, open_regular_file

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions by which msgspec reports that bytes are not JSON of the expected type."""
T = TypeVar("T")


class JsonLine(NamedTuple, Generic[T]):
    """One complete line of a log."""

    number: int
    """Line number in the file, from 1."""
    text: bytes
    """The line as it is in the file, with its newline."""
    value: T | None
    """The decoded line; None if it is damaged."""


def read_jsonl(path: Path, decode: Callable[[bytes], T]) -> Iterator[JsonLine[T]]:
    """Yield the complete lines of a log; a missing file has none.

    Each line is written with its newline, so a last line without one was cut off by a kill or a
    power loss. It is left out.

    Args:
        path: the log.
        decode: returns the value of a line, or raises one of ``UNREADABLE``.
    """
    for number, text in enumerate(_complete_lines(path), start=1):
        try:
            value = decode(text)
        except UNREADABLE:
            value = None
        yield JsonLine(number, text, value)


def truncate_partial_line(path: Path) -> None:
    """Remove a last line that was cut off, so that the next line starts on its own."""
    size = sum(len(line) for line in _complete_lines(path))
    if path.exists() and size < path.stat().st_size:
        os.truncate(path, size)


def end_partial_line(fd: int) -> None:
    """End a last line that was cut off, so that the next line starts on its own.

    Unlike ``truncate_partial_line`` it is safe while another process appends to the file.

    Args:
        fd: the log, open for reading and appending.

    Raises:
        OSError: the file cannot be read or written.
    """
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        os.write(fd, b"\n")


def _complete_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines one by one: a log of 2 GiB takes the memory of its longest line."""
    try:
        with open_regular_file(path, MAX_JOURNAL_BYTES) as file:
            while (line := file.readline(MAX_JSON_BYTES)).endswith(b"\n"):
                yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFolderError(
            f"cannot read {path}: {error.strerror}", code="run.unreadable"
        ) from None
    if len(line) == MAX_JSON_BYTES:
        raise RunFolderError(
            f"{path} is damaged: a line has more than {MAX_JSON_BYTES} bytes", code="run.damaged"
        )
