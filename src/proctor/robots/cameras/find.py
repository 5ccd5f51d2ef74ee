"""Lists the cameras of this machine, for ``proctor find-cameras``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.robots.base import CameraConfig
from proctor.robots.cameras.opencv import OpenCVCameraConfig, import_cv2
from proctor.robots.cameras.realsense import (
    RealSenseCameraConfig,
    import_realsense,
    list_devices,
    load_realsense,
)
from proctor.robots.cameras.v4l2 import VideoDevice, query_device

_MOST_INDEX = 10
"""On macOS and Windows cameras have no files; these indexes are tried."""
_CLOSED_TO_US = "cannot be opened: permission denied; add yourself to the group video"


@dataclass(frozen=True)
class FoundCamera:
    """A camera of this machine."""

    config: CameraConfig
    """Opens the camera in its own size and rate."""
    id: str
    """Value of ``index_or_path`` or ``serial_number_or_name``."""
    name: str
    modes: tuple[str, ...] = ()
    """Supported sizes, rates and formats, where the system can list them."""
    problem: str = ""
    """Why it cannot be opened; empty if nothing is known against it."""


def find_cameras(kind: str | None = None) -> list[FoundCamera]:
    """List the cameras of type ``kind``, "opencv" or "intelrealsense"; None lists both."""
    found: list[FoundCamera] = []
    if kind in (None, "opencv"):
        found += find_video_devices() if sys.platform == "linux" else _find_indexes(import_cv2())
    if kind == "intelrealsense":
        found += find_realsense(import_realsense())
    elif kind is None and (realsense := load_realsense()) is not None:
        found += find_realsense(realsense)
    return found


def find_video_devices(
    folder: Path = Path("/dev"), query: Callable[[Path], VideoDevice | None] = query_device
) -> list[FoundCamera]:
    """List the Linux video devices that capture images; nodes for metadata are left out."""
    found = []
    for path in sorted(folder.glob("video*"), key=_number):
        config = OpenCVCameraConfig(index_or_path=str(path))
        try:
            device = query(path)
        except PermissionError:
            found.append(FoundCamera(config, str(path), "", problem=_CLOSED_TO_US))
        except OSError as bad:
            problem = f"cannot be opened: {bad.strerror}"
            found.append(FoundCamera(config, str(path), "", problem=problem))
        else:
            if device is not None:
                modes = tuple(str(mode) for mode in device.modes)
                found.append(FoundCamera(config, str(path), device.name, modes))
    return found


def find_realsense(realsense: Any) -> Sequence[FoundCamera]:
    """List the connected RealSense cameras."""
    return [
        FoundCamera(RealSenseCameraConfig(serial_number_or_name=serial), serial, name)
        for serial, name in list_devices(realsense).items()
    ]


def _find_indexes(cv2: Any) -> list[FoundCamera]:
    """List the cameras that OpenCV opens by number."""
    found = []
    for index in range(_MOST_INDEX):
        capture = cv2.VideoCapture(index)
        if capture.isOpened():
            width = capture.get(cv2.CAP_PROP_FRAME_WIDTH)
            height = capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
            mode = f"{width:g}x{height:g} {capture.get(cv2.CAP_PROP_FPS):g} fps"
            config = OpenCVCameraConfig(index_or_path=index)
            found.append(FoundCamera(config, str(index), capture.getBackendName(), (mode,)))
        capture.release()
    return found


def _number(path: Path) -> tuple[int, str]:
    digits = re.findall(r"\d+$", path.name)
    return (int(digits[0]) if digits else -1, path.name)
