"""Reference pictures: how the scene of a block looked when its first trial started."""

from __future__ import annotations

import re
from pathlib import Path

from proctor.control.robot_features import camera_shapes
from proctor.robots.base import Robot, RobotObservation
from proctor.runs.folder import write_run_file
from proctor.system.graphics.png import encode_png

REFERENCES = "references"


class ReferencePictures:
    """The pictures of all blocks, in a folder beside the runs: one PNG per block and camera.

    A marker file says that a block has begun, also on a robot without cameras.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / REFERENCES

    def has(self, block: int) -> bool:
        """Return whether the scene of ``block`` was set up before."""
        return self._marker(block).is_file()

    def store(self, block: int, robot: Robot, observation: RobotObservation) -> None:
        """Store the images of the first trial's start."""
        self._folder.mkdir(exist_ok=True)
        for camera in camera_shapes(robot):
            picture = encode_png(observation[camera], level=6)
            write_run_file(self.path(block, camera), picture)
        write_run_file(self._marker(block), b"")

    def read(self, block: int, robot: Robot) -> dict[str, bytes]:
        """Return the stored pictures of a block: camera -> PNG; empty for a new scene."""
        paths = {camera: self.path(block, camera) for camera in camera_shapes(robot)}
        return {camera: path.read_bytes() for camera, path in paths.items() if path.is_file()}

    def path(self, block: int, camera: str) -> Path:
        """Return the file of a camera's picture, which may not exist."""
        name = re.sub(r"[^A-Za-z0-9_-]", "_", camera)
        return self._folder / f"scene_{block:04d}_{name}.png"

    def _marker(self, block: int) -> Path:
        return self._folder / f"scene_{block:04d}.begun"
