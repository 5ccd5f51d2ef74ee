"""The live page of a robot: cameras, joints against limits, loop rate, and the reference picture.

A control loop hands over its newest step with ``LiveRobot.publish``, which stores a reference and
returns at once. Threads of the page server encode images and count, when a browser asks.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np

from proctor.features import Array
from proctor.report.html.document import document_html
from proctor.report.server.serve import PageServer
from proctor.report.server.site import Answer, Page
from proctor.system.graphics.png import encode_png

_TICKS = 300
"""Ticks of which rate and jitter are shown: ten seconds at 30 Hz."""
_MOST_PIXELS = 480
"""Longest side of a shown image; larger ones are thinned out."""


@dataclass(frozen=True)
class LiveChannel:
    """A joint of the robot: its name, unit and limits."""

    name: str
    unit: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class LiveStep:
    """The newest step of a control loop."""

    observation: Mapping[str, Any]
    """Channel -> value, camera -> image; never changed after it is published."""
    sent: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LiveStatus:
    """What the person sees in words."""

    phase: str = ""
    headline: str = ""
    """As "trial 3 of 40" or "episode 3 of 50"."""
    keys: str = ""
    done: int = 0
    planned: int | None = None


class LiveRobot:
    """The page's content; one control loop writes it, threads of the server read it."""

    def __init__(
        self, title: str, channels: Sequence[LiveChannel], cameras: Sequence[str], fps: float
    ) -> None:
        self._title = title
        self.channels = tuple(channels)
        """Replaced as a whole once the limits are known."""
        self._cameras = tuple(cameras)
        self._fps = fps
        self._step: LiveStep | None = None
        self._count = 0
        self._ticks: deque[float] = deque(maxlen=_TICKS)
        self.status = LiveStatus()
        """Replaced as a whole by the loop."""
        self.references: Mapping[str, bytes] = {}
        """Camera -> PNG of the reference picture; replaced as a whole."""

    def publish(self, step: LiveStep, now: float, *, is_tick: bool = True) -> None:
        """Show a step that began at ``now`` on the loop's clock; never waits.

        ``is_tick=False``: a look at the robot between episodes, which says nothing of the rate.
        """
        self._step = step
        self._count += 1
        if is_tick:
            self._ticks.append(now)
        elif self._ticks:
            self._ticks.clear()

    def page(self) -> str:
        """Return the page."""
        values = {
            "title": self._title,
            "channels": [msgspec.to_builtins(channel) for channel in self.channels],
            "cameras": list(self._cameras),
            "fps": self._fps,
            "live": "robot",
        }
        return document_html(
            "server/live_robot", values, styles=("server/live_robot.css",), media=True
        )

    def state(self) -> dict[str, Any]:
        """Return the numbers of the newest step, as JSON values."""
        step, status = self._step, self.status
        observation: Mapping[str, Any] = {} if step is None else step.observation
        sent: Mapping[str, float] = {} if step is None else step.sent
        rate, jitter = _rate_and_jitter(list(self._ticks), self._fps)
        return {
            "step": self._count,
            "joints": [_finite(observation.get(channel.name)) for channel in self.channels],
            "sent": [_finite(sent.get(channel.name)) for channel in self.channels],
            "rate": rate,
            "jitter_ms": jitter,
            "references": sorted(self.references),
            **msgspec.to_builtins(status),
        }

    def image(self, camera: str) -> bytes | None:
        """Return the newest image of a camera as PNG; None: there is none."""
        step = self._step
        if step is None or camera not in self._cameras or camera not in step.observation:
            return None
        return encode_png(_shown(step.observation[camera]))


def _rate_and_jitter(ticks: list[float], fps: float) -> tuple[float | None, float | None]:
    """Return ticks per second, and the 99th percentile of the period's deviation in ms."""
    periods = np.array([later - earlier for earlier, later in itertools.pairwise(ticks)])
    if not len(periods) or periods.sum() <= 0:
        return None, None
    jitter = float(np.percentile(np.abs(periods - 1 / fps), 99)) * 1000
    return round(len(periods) / float(periods.sum()), 2), round(jitter, 2)


def _finite(value: Any) -> float | None:
    return round(float(value), 2) if value is not None and math.isfinite(value) else None


def _shown(image: Array) -> Array:
    """Return an image as uint8, thinned out to a size that a page shows; depth as grey levels."""
    every = -(-max(image.shape[:2]) // _MOST_PIXELS)
    small = image[::every, ::every]
    if small.dtype != np.uint8:
        span = max(1, int(small.max()))
        small = (small.astype(np.float32) * (255 / span)).astype(np.uint8)
    return small


@dataclass(frozen=True)
class LiveRobotSite:
    """Serves the live page, its numbers, and the images."""

    robot: LiveRobot
    root: Path = field(default_factory=Path.cwd)

    def answer(self, path: str, target: Path, query: Mapping[str, Sequence[str]]) -> Answer:
        """Return the page, ``/state``, ``/camera/NAME`` or ``/reference/NAME``."""
        kind, _, name = path.lstrip("/").partition("/")
        if path == "/":
            return Page(self.robot.page())
        if kind == "state" and not name:
            return Page(msgspec.json.encode(self.robot.state()).decode(), "application/json")
        if kind == "camera":
            image = self.robot.image(unquote(name))
        elif kind == "reference":
            image = self.robot.references.get(unquote(name))
        else:
            image = None
        return None if image is None else Page(image, "image/png")


@contextmanager
def serving_live_robot(robot: LiveRobot, host: str, port: int) -> Iterator[str]:
    """Serve the page during the block; yield its URL."""
    server = PageServer(LiveRobotSite(robot), host, port)
    thread = threading.Thread(target=server.serve_forever, name="live-robot", daemon=True)
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
