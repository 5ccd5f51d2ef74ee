"""Cameras of the simulated cell (type ``sim``): front and wrist.

In virtual time an image is rendered when it is asked for. In real time a reader thread renders: it
starts when an image is taken, so each step of a loop finds a new image and never waits.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from proctor.benchmarks.so101.scene_view import SceneView
from proctor.errors import DeviceNotConnected, UsageError
from proctor.features import Array
from proctor.robots.base import Camera, CameraConfig, CameraFrame, CameraPlugin, Clock, ImageShape
from proctor.robots.cameras.reader import FrameSource, ReaderCamera, ReaderLimits
from proctor.robots.emulation.cell import CellClock, SimulatedCell, VirtualClock

_DEFAULT_SIZE, _DEFAULT_FPS = (96, 96), 30
_VIEWS = ("front", "wrist")
_EARLY = 0.85
"""Least part of a frame's period between two renderings: a loop's request may come early."""

_RENDER_NICENESS = 5
_BUSY_S = 10.0
"""Maximum age of a real-time image. A simulated camera is late because the computer is busy: a
limit for faults of real cameras would end recordings on slow computers."""


@dataclass
class SimulatedCameraConfig(CameraConfig):
    """Flags of a simulated camera."""

    type: str = "sim"
    view: str | None = None
    """"front" or "wrist"; None: the camera's name if it is one of these, else front."""

    def __post_init__(self) -> None:
        """Check the view."""
        if self.view not in (None, *_VIEWS):
            raise ValueError(f"view must be front or wrist, not {self.view!r}")

    @property
    def camera(self) -> str:
        """The world's camera."""
        if self.view is not None:
            return self.view
        return self.name if self.name in _VIEWS else _VIEWS[0]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return (self.height or _DEFAULT_SIZE[0], self.width or _DEFAULT_SIZE[1])

    @property
    def period_s(self) -> float:
        """Seconds between two images."""
        return 1.0 / (self.fps or _DEFAULT_FPS)


class VirtualCamera(Camera):
    """A camera in virtual time; equal runs give equal images."""

    def __init__(self, cell: SimulatedCell, config: SimulatedCameraConfig) -> None:
        self._cell, self._config = cell, config
        self._view: SceneView | None = None
        self._frame: CameraFrame | None = None
        self._due_at = 0.0
        self._renderer: ThreadPoolExecutor | None = None
        """One thread: a GL context belongs to the thread that made it."""

    @property
    def shape(self) -> ImageShape:
        """Height, width and channels of an image."""
        return (*self._config.size, 3)

    @property
    def is_connected(self) -> bool:
        """Whether the camera is open."""
        return self._renderer is not None

    def connect(self) -> None:
        """Make the renderer and render the first image."""
        if self._renderer is not None:
            raise DeviceNotConnected(
                "the simulated camera is already connected", code="camera.already-connected"
            )
        self._view = self._cell.world.view(*self._config.size)
        self._renderer = ThreadPoolExecutor(1, thread_name_prefix="simulated camera")
        self._frame = None
        self.latest()

    def latest(self, max_age_s: float = 0.5) -> CameraFrame:
        """Return the image of this moment, or the one before if the next is not due yet."""
        if self._renderer is None or self._view is None:
            raise DeviceNotConnected(
                "the simulated camera is not connected", code="camera.not-connected"
            )
        now = self._cell.clock.now()
        if self._frame is None or now > self._due_at - 1e-6:
            number = 1 if self._frame is None else self._frame.number + 1
            with self._cell.lock:
                self._view.capture()
            image = self._renderer.submit(self._view.render, self._config.camera).result()
            image.setflags(write=False)
            self._frame = CameraFrame(image, now, number)
            self._due_at = now + self._config.period_s
        return self._frame

    def disconnect(self) -> None:
        """Free the renderer."""
        renderer, self._renderer = self._renderer, None
        if renderer is not None and self._view is not None:
            renderer.submit(self._view.close).result()
            renderer.shutdown()


class _RenderedFrames(FrameSource):
    """Renders in the reader's thread when an image was taken, at most at the frame rate."""

    def __init__(self, cell: SimulatedCell, config: SimulatedCameraConfig) -> None:
        self.description = f"simulated camera {config.camera}"
        self.taken = threading.Event()
        self._cell, self._config = cell, config
        self._view: SceneView | None = None
        self._started_at = 0.0

    @property
    def shape(self) -> ImageShape:
        """Height, width and channels of an image."""
        return (*self._config.size, 3)

    def open(self) -> None:
        """Make the view of the world; its renderer is made by the first image.

        The thread gives way to the control loop; the renderer's own threads inherit that.
        """
        if sys.platform == "linux":  # elsewhere the priority is the whole process'
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _RENDER_NICENESS)
        self._view = self._cell.world.view(*self._config.size)
        self.taken.set()

    def read(self) -> Array:
        """Wait until an image was taken, at most two periods, and render the next one."""
        assert self._view is not None
        self.taken.wait(2 * self._config.period_s)
        early = self._started_at + _EARLY * self._config.period_s - time.perf_counter()
        if early > 0:
            time.sleep(early)
        self.taken.clear()
        self._started_at = time.perf_counter()
        with self._cell.lock:
            self._cell.catch_up()
            self._view.capture()
        return self._view.render(self._config.camera)

    def close(self) -> None:
        """Free the renderer."""
        if self._view is not None:
            self._view.close()
            self._view = None


class RealTimeCamera(ReaderCamera):
    """A camera in real time. An image is as old as one step of the loop."""

    def __init__(self, cell: SimulatedCell, config: SimulatedCameraConfig) -> None:
        self._frames = _RenderedFrames(cell, config)
        super().__init__(self._frames, cell.clock, ReaderLimits(connect_s=30.0))

    def latest(self, max_age_s: float = 0.5) -> CameraFrame:
        """Return the newest image and let the reader render the next one."""
        self._frames.taken.set()
        return super().latest(max(max_age_s, _BUSY_S))


def make_camera(config: SimulatedCameraConfig, clock: Clock) -> Camera:
    """Make a closed camera of the cell whose clock it is given."""
    if isinstance(clock, VirtualClock):
        return VirtualCamera(clock.cell, config)
    if isinstance(clock, CellClock):
        return RealTimeCamera(clock.cell, config)
    raise UsageError(
        "a camera of type sim belongs to a robot with --robot.port=sim", code="camera.sim-only"
    )


PLUGIN = CameraPlugin(SimulatedCameraConfig, make_camera, "cameras of the simulated robot")
