"""Frames of a journal: each record with its length and checksum."""

from __future__ import annotations

import struct
import zlib

_HEAD = struct.Struct("<II")  # length, CRC-32


def frame(content: bytes) -> bytes:
    """Return ``content`` with its length and checksum in front."""
    return _HEAD.pack(len(content), zlib.crc32(content)) + content


def complete_frames(data: bytes) -> tuple[list[tuple[int, int]], bool]:
    """Return where each valid frame's content lies, up to the first frame that is not valid.

    The flag tells whether the rest can be the end of an interrupted write: no valid frame follows
    the first one that is not valid.
    """
    found: list[tuple[int, int]] = []
    at = 0
    while (span := _span(data, at)) is not None and _is_valid(data, at, span):
        found.append(span)
        at = span[1]
    after = None if span is None else _span(data, span[1])
    is_torn = span is None or after is None or not _is_valid(data, span[1], after)
    return found, is_torn


def _span(data: bytes, at: int) -> tuple[int, int] | None:
    """Return where the content of the frame at ``at`` lies; None if the data ends before."""
    start = at + _HEAD.size
    if start > len(data):
        return None
    length, _ = _HEAD.unpack_from(data, at)
    return (start, start + length) if start + length <= len(data) else None


def _is_valid(data: bytes, at: int, span: tuple[int, int]) -> bool:
    _, checksum = _HEAD.unpack_from(data, at)
    start, stop = span
    return start < stop and zlib.crc32(data[start:stop]) == checksum
