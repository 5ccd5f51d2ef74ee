"""``proctor find-cameras``: the cameras of this machine, with an image of each."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.config.flags.command import CommandConfig, argument, run_command
from proctor.errors import ProctorError, UsageError, did_you_mean, strip_control_codes
from proctor.settings import setting

if TYPE_CHECKING:
    from proctor.features import Array
    from proctor.robots.cameras.find import FoundCamera

_KINDS = {"opencv": "opencv", "realsense": "intelrealsense", "intelrealsense": "intelrealsense"}
EXIT_NONE = 1


@dataclass(kw_only=True)
class FindCamerasCommand(CommandConfig):
    """List the cameras of this machine with their modes, and save an image of each.

    Exit code 1: there is no camera, or one of them gave no image.
    """

    kind: str | None = field(
        default=None,
        metadata=argument("KIND", "opencv or realsense", least=0) | {"default_help": "both"},
    )
    output_dir: Path = setting(Path("outputs/captured_images"), "folder of the images")
    record_time_s: float = setting(
        2.0, "seconds that each camera is read; its last image is saved", least=0, most=3600
    )
    warmup_s: float = setting(
        1.0, "seconds that a camera may take to its first good image", least=0, most=3600
    )

    def validate(self) -> None:
        """Refuse an unknown kind."""
        if self.kind is not None and self.kind not in _KINDS:
            near = did_you_mean(self.kind, _KINDS) or " (choose opencv or realsense)"
            raise UsageError(f"no cameras of kind {self.kind!r}{near}", code="argument.unknown")

    def run(self) -> int:
        """Print the cameras, save their images and return the exit code."""
        from proctor.robots.cameras.find import find_cameras

        cameras = find_cameras(None if self.kind is None else _KINDS[self.kind])
        if not cameras:
            print("no cameras found")
            return EXIT_NONE
        failed = 0
        for camera in cameras:
            print(strip_control_codes(f"{camera.id}  {camera.name}"))
            for mode in camera.modes:
                print(strip_control_codes(f"  {mode}"))
            failed += not self._save_image(camera)
        return EXIT_NONE if failed else 0

    def _save_image(self, camera: FoundCamera) -> bool:
        """Save an image of a camera; print a failure and return whether there was none."""
        try:
            if camera.problem:
                raise UsageError(camera.problem, code="camera.unusable")
            image = self._image(camera)
        except ProctorError as error:
            print(strip_control_codes(f"  {error}"), file=sys.stderr)
            return False
        from proctor.robots.cameras.opencv import import_cv2

        path = self.output_dir / f"{camera.config.type}_{camera.id.replace('/', '_')}.png"
        self.output_dir.mkdir(parents=True, exist_ok=True)
        import_cv2().imwrite(str(path), image[..., ::-1])  # OpenCV writes BGR
        print(f"  {image.shape[1]}x{image.shape[0]} image saved to {path}")
        return True

    def _image(self, found: FoundCamera) -> Array:
        """Return the last image of ``record_time_s`` seconds."""
        from proctor import plugins
        from proctor.robots.base import RealClock

        config: Any = found.config
        config = replace(config, warmup_s=self.warmup_s)
        camera = plugins.find_camera(config.type).make(config, RealClock())
        camera.connect()
        try:
            end = time.monotonic() + self.record_time_s
            while time.monotonic() < end:
                camera.latest()
                time.sleep(0.02)
            return camera.latest().image
        finally:
            camera.disconnect()


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_command(FindCamerasCommand, "proctor find-cameras", words)
