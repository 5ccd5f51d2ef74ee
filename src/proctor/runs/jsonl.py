"""Reader of the JSON-lines logs in run folders: journal, sessions, training log, ledger."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from proctor.errors import RunFolderError
from proctor.system.files import MAX_JOURNAL_BYTES, read_regular_file

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

    Raises:
        RunFolderError: the file exists but is not a regular file, or cannot be read.
    """
    content = _content(path)
    for number, text in enumerate(io.BytesIO(content[: _complete_size(content)]), start=1):
        try:
            value = decode(text)
        except UNREADABLE:
            value = None
        yield JsonLine(number, text, value)


def truncate_partial_line(path: Path) -> None:
    """Remove a last line that was cut off, so that the next line starts on its own.

    Raises:
        RunFolderError: the file exists but is not a regular file, or cannot be read.
    """
    content = _content(path)
    size = _complete_size(content)
    if size < len(content):
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


def _complete_size(content: bytes) -> int:
    return content.rfind(b"\n") + 1


def _content(path: Path) -> bytes:
    try:
        return read_regular_file(path, MAX_JOURNAL_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise RunFolderError(
            f"cannot read {path}: {error.strerror}", code="run.unreadable"
        ) from None
