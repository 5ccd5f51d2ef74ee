"""Listing cameras: a fake of the kernel's V4L2 interface."""

from __future__ import annotations

import errno
import struct
import sys
from pathlib import Path

import pytest

from proctor.errors import UsageError
from proctor.robots.cameras import find, v4l2
from proctor.robots.cameras.find import find_cameras, find_video_devices
from proctor.robots.cameras.v4l2 import VideoDevice, VideoMode, query_device
from tests.refusals import refuses

CAPTURE, METADATA, DEVICE_CAPS = 0x1, 0x00800000, 0x80000000
MODES = {
    b"MJPG": {(640, 480): [(1, 30), (1, 15)], (1280, 720): [(1, 30)]},
    b"YUYV": {(640, 480): [(1, 10)]},
}


class FakeKernel:
    """Answers ioctls as a driver does: lists entry by entry, then EINVAL."""

    def __init__(self, capabilities: int = CAPTURE) -> None:
        self.capabilities = capabilities

    def __call__(self, handle: int, request: int, buffer: bytearray) -> int:
        answers = {
            v4l2.QUERY_CAPABILITIES: self._capabilities,
            v4l2.ENUM_FORMATS: self._format,
            v4l2.ENUM_FRAME_SIZES: self._size,
            v4l2.ENUM_FRAME_INTERVALS: self._interval,
        }
        try:
            answers[request](buffer)
        except IndexError:
            raise OSError(errno.EINVAL, "Invalid argument") from None
        return 0

    def _capabilities(self, buffer: bytearray) -> None:
        struct.pack_into(
            "16s32s32sIII",
            buffer,
            0,
            *(b"uvcvideo", b"Fake Cam", b"usb-1", 1),
            *(CAPTURE | METADATA | DEVICE_CAPS, self.capabilities),
        )

    def _format(self, buffer: bytearray) -> None:
        index, kind = struct.unpack_from("II", buffer)
        assert kind == 1
        struct.pack_into("4s", buffer, 44, list(MODES)[index])

    def _size(self, buffer: bytearray) -> None:
        index, fourcc = struct.unpack_from("I4s", buffer)
        struct.pack_into("III", buffer, 8, 1, *list(MODES[fourcc])[index])

    def _interval(self, buffer: bytearray) -> None:
        index, fourcc, width, height = struct.unpack_from("I4sII", buffer)
        struct.pack_into("III", buffer, 16, 1, *MODES[fourcc][width, height][index])


def test_name_and_modes_of_a_device_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "video0"
    path.touch()

    assert query_device(path, FakeKernel()) == VideoDevice(
        path,
        "Fake Cam",
        (
            VideoMode("MJPG", 640, 480, 30.0),
            VideoMode("MJPG", 640, 480, 15.0),
            VideoMode("MJPG", 1280, 720, 30.0),
            VideoMode("YUYV", 640, 480, 10.0),
        ),
    )


def test_a_metadata_node_is_no_camera(tmp_path: Path) -> None:
    path = tmp_path / "video1"
    path.touch()

    assert query_device(path, FakeKernel(METADATA)) is None


def test_a_file_that_is_no_device_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "video0"
    path.touch()

    with pytest.raises(OSError):
        query_device(path)


def test_the_codes_are_those_of_the_kernel() -> None:
    # videodev2.h on 64-bit Linux
    assert v4l2.QUERY_CAPABILITIES == 0x80685600
    assert v4l2.ENUM_FORMATS == 0xC0405602
    assert v4l2.ENUM_FRAME_SIZES == 0xC02C564A
    assert v4l2.ENUM_FRAME_INTERVALS == 0xC034564B


def test_devices_are_listed_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 2, 0, 1):
        (tmp_path / f"video{number}").touch()

    def query(path: Path) -> VideoDevice | None:
        if path.name == "video1":
            return None
        if path.name == "video2":
            raise PermissionError(errno.EACCES, "Permission denied")
        return VideoDevice(path, f"name of {path.name}", (VideoMode("MJPG", 640, 480, 30.0),))

    found = find_video_devices(tmp_path, query)

    assert [Path(camera.id).name for camera in found] == ["video0", "video2", "video10"]
    assert [camera.name for camera in found] == ["name of video0", "", "name of video10"]
    assert [bool(camera.problem) for camera in found] == [False, True, False]
    assert found[0].modes == ("640x480 30 fps MJPG",)


def test_a_missing_package_is_told_only_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyrealsense2", None)
    monkeypatch.setattr(find, "find_video_devices", list)
    monkeypatch.setattr(find.sys, "platform", "linux")

    assert find_cameras() == []
    with refuses(UsageError, "extra.missing"):
        find_cameras("intelrealsense")
