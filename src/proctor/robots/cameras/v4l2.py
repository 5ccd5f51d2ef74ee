"""Asks a Linux video device for its name and modes, through the kernel's V4L2 interface.

OpenCV cannot list modes, and opening a device to try them disturbs programs that use it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Ioctl = Callable[[int, int, bytearray], int]
"""``fcntl.ioctl``; the buffer is changed in place."""

_CAPTURE, _DEVICE_CAPS = 0x00000001, 0x80000000
_DISCRETE = 1
_MOST = 200
"""Entries of a list that are read at most; a driver may repeat itself for ever."""


def _request(direction: int, number: int, size: int) -> int:
    """Return the code of a V4L2 ioctl (Linux: ``_IOC`` in asm-generic/ioctl.h)."""
    return (direction << 30) | (size << 16) | (ord("V") << 8) | number


_READ, _READ_WRITE = 2, 3
QUERY_CAPABILITIES = _request(_READ, 0, 104)
ENUM_FORMATS = _request(_READ_WRITE, 2, 64)
ENUM_FRAME_SIZES = _request(_READ_WRITE, 74, 44)
ENUM_FRAME_INTERVALS = _request(_READ_WRITE, 75, 52)


@dataclass(frozen=True, order=True)
class VideoMode:
    """One mode of a camera."""

    fourcc: str
    width: int
    height: int
    fps: float

    def __str__(self) -> str:
        return f"{self.width}x{self.height} {self.fps:g} fps {self.fourcc}"


@dataclass(frozen=True)
class VideoDevice:
    """A device that captures images."""

    path: Path
    name: str
    modes: tuple[VideoMode, ...]


def query_device(path: Path, ioctl: Ioctl | None = None) -> VideoDevice | None:
    """Return name and modes of a video device; None if it captures no images, as metadata nodes.

    Raises:
        OSError: it cannot be opened, or is no V4L2 device.
    """
    if ioctl is None:
        from fcntl import ioctl as kernel_ioctl

        ioctl = kernel_ioctl
    handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        buffer = bytearray(104)
        ioctl(handle, QUERY_CAPABILITIES, buffer)
        _, card, _, _, capabilities, device_capabilities = struct.unpack_from(
            "16s32s32sIII", buffer
        )
        own = device_capabilities if capabilities & _DEVICE_CAPS else capabilities
        if not own & _CAPTURE:
            return None
        name = card.split(b"\0")[0].decode(errors="replace")
        return VideoDevice(path, name, tuple(_modes(handle, ioctl)))
    finally:
        os.close(handle)


def _modes(handle: int, ioctl: Ioctl) -> Iterator[VideoMode]:
    for index in range(_MOST):
        buffer = bytearray(64)
        struct.pack_into("II", buffer, 0, index, _CAPTURE)
        if not _answers(ioctl, handle, ENUM_FORMATS, buffer):
            return
        (fourcc,) = struct.unpack_from("I", buffer, 44)
        for width, height in _sizes(handle, ioctl, fourcc):
            for fps in _rates(handle, ioctl, (fourcc, width, height)):
                yield VideoMode(struct.pack("<I", fourcc).decode("latin1"), width, height, fps)


def _sizes(handle: int, ioctl: Ioctl, fourcc: int) -> Iterator[tuple[int, int]]:
    """Yield the sizes of a format; of a range, its smallest and its largest."""
    for index in range(_MOST):
        buffer = bytearray(44)
        struct.pack_into("II", buffer, 0, index, fourcc)
        if not _answers(ioctl, handle, ENUM_FRAME_SIZES, buffer):
            return
        (kind,) = struct.unpack_from("I", buffer, 8)
        if kind == _DISCRETE:
            yield struct.unpack_from("II", buffer, 12)
            continue
        least_width, most_width, _, least_height, most_height, _ = struct.unpack_from(
            "6I", buffer, 12
        )
        yield least_width, least_height
        yield most_width, most_height
        return


def _rates(handle: int, ioctl: Ioctl, mode: tuple[int, int, int]) -> Iterator[float]:
    """Yield the frame rates of a format and size; of a range, the highest."""
    for index in range(_MOST):
        buffer = bytearray(52)
        struct.pack_into("4I", buffer, 0, index, *mode)
        if not _answers(ioctl, handle, ENUM_FRAME_INTERVALS, buffer):
            return
        kind, numerator, denominator = struct.unpack_from("3I", buffer, 16)
        if numerator:
            yield denominator / numerator
        if kind != _DISCRETE:
            return


def _answers(ioctl: Ioctl, handle: int, request: int, buffer: bytearray) -> bool:
    """Return whether the list has this entry; the kernel answers EINVAL after the last one."""
    try:
        ioctl(handle, request, buffer)
    except OSError:
        return False
    return True
