"""A camera that is read by its own thread: the control loop does not wait for the next image.

FrameSource     what a camera type implements: open, wait for the next image, close
ReaderCamera    a camera with a reader thread, which reconnects a source that fails
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from proctor.errors import DeviceNotConnected
from proctor.features import Array
from proctor.robots.base import Camera, CameraFrame, Clock, ImageShape

_FAILED_READS_TO_RECONNECT = 5
_PAUSE_S = 0.01
"""After a failed read, since a device that is gone fails at once, and between two looks for a late
image."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0
_LATE_S = 1.0
"""Longest wait for an image instead of one that is too old: after a pause of the computer the
reader needs a moment."""
_JOIN_S = 2.0
"""A driver may block in a read; a thread that takes longer ends by itself when the read returns."""


class FrameMissing(Exception):
    """A read failed; the next one may succeed."""


class FramesEnded(Exception):
    """The source has no more images, as at the end of a video file."""


class FrameSource(ABC):
    """A device that delivers images. All methods are called by the reader thread."""

    description: str
    """Names the device in errors: "opencv camera 0"."""

    @property
    @abstractmethod
    def shape(self) -> ImageShape:
        """Height, width and channels: as configured, else as opened."""

    @abstractmethod
    def open(self) -> None:
        """Open the device."""

    @abstractmethod
    def read(self) -> Array:
        """Wait for the next image and return it.

        Raises:
            FrameMissing: there is no image this time.
            FramesEnded: there will be no more images.
            DeviceNotConnected: an image is not as configured.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the device; a closed one is left alone."""


@dataclass(frozen=True)
class ReaderCounts:
    """Counts of a camera since it was connected."""

    frames: int = 0
    failed_reads: int = 0
    reconnects: int = 0
    repeats: int = 0
    """Calls of ``latest`` that returned an image again."""


@dataclass(frozen=True)
class ReaderLimits:
    """How long the reader tries, in seconds."""

    connect_s: float = 10.0
    """For the first image."""
    warmup_s: float = 0.0
    """Images of this long are dropped after the first one: exposure settles."""
    reconnect_s: float = 10.0
    """For the next image after a failure; then the reader ends."""


class ReaderCamera(Camera):
    """A camera whose newest image is kept by a reader thread."""

    def __init__(self, source: FrameSource, clock: Clock, limits: ReaderLimits) -> None:
        self._source = source
        self._clock = clock
        self._limits = limits
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._changed = threading.Event()
        self._reset()

    def _reset(self) -> None:
        """Forget images, counts and failures of an earlier connection."""
        self._frame: CameraFrame | None = None
        self._failure: Exception | None = None
        self._delivers = False
        self._counts = ReaderCounts()
        self._last_returned = 0

    @property
    def shape(self) -> ImageShape:
        """Height, width and channels of an image."""
        return self._source.shape

    @property
    def is_connected(self) -> bool:
        """Whether images arrive: False while the reader reconnects and after it ended."""
        return self._delivers and self._thread is not None and self._thread.is_alive()

    @property
    def counts(self) -> ReaderCounts:
        """Counts since ``connect``."""
        with self._lock:
            return self._counts

    def connect(self) -> None:
        """Start the reader and wait for the first image, then until exposure has settled."""
        if self._thread is not None:
            raise DeviceNotConnected(
                f"{self._source.description} is already connected", code="camera.already-connected"
            )
        self._reset()
        self._stopping, self._changed = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._stopping,), name=self._source.description, daemon=True
        )
        self._thread.start()
        came = self._changed.wait(self._limits.connect_s)
        failure = None if self._frame else self._failure  # later failures are for latest() to tell
        if came and failure is None and self._limits.warmup_s:
            self._stopping.wait(self._limits.warmup_s)
            failure = self._failure
        if failure is not None or not came:
            self.disconnect()
            raise (
                self._told(failure)
                if failure
                else DeviceNotConnected(
                    f"{self._source.description} sent no image within {self._limits.connect_s:g} s",
                    code="camera.no-image",
                )
            )

    def latest(self, max_age_s: float = 0.5) -> CameraFrame:
        """Return the newest image; equal numbers are the same image.

        It is there already, unless that one is older than ``max_age_s``.
        """
        frame = self.newest(max_age_s)
        with self._lock:
            repeats = self._counts.repeats + (frame.number == self._last_returned)
            self._counts = replace(self._counts, repeats=repeats)
            self._last_returned = frame.number
        return frame

    def newest(self, max_age_s: float) -> CameraFrame:
        """Return the newest image as ``latest`` does, without counting repeats."""
        late_at = time.monotonic() + _LATE_S
        while True:
            frame = self._newest_or_failure()
            age = self._clock.now() - frame.captured_at
            if age <= max_age_s:
                return frame
            if time.monotonic() > late_at:
                raise DeviceNotConnected(
                    f"{self._source.description}: the newest image is {age:.2f} s old "
                    f"(limit {max_age_s:g} s)",
                    code="camera.stale",
                )
            self._stopping.wait(_PAUSE_S)

    def _newest_or_failure(self) -> CameraFrame:
        with self._lock:
            frame, failure = self._frame, self._failure
        what = self._source.description
        if self._thread is None:
            raise DeviceNotConnected(f"{what} is not connected", code="camera.not-connected")
        if failure is not None:
            raise self._told(failure)
        if frame is None:
            raise DeviceNotConnected(f"{what} has sent no image yet", code="camera.no-image")
        return frame

    def disconnect(self) -> None:
        """Stop the reader, which closes the device."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            thread.join(_JOIN_S)
        self._delivers = False

    def _told(self, failure: Exception) -> DeviceNotConnected:
        if isinstance(failure, DeviceNotConnected):
            return DeviceNotConnected(str(failure), code=failure.code)
        told = DeviceNotConnected(
            f"{self._source.description}: its reader ended: {failure or type(failure).__name__}",
            code="camera.reader-ended",
        )
        told.__cause__ = failure
        return told

    def _run(self, stopping: threading.Event) -> None:
        """Read until ``stopping``; the failure that ends the reader is kept for the caller."""
        try:
            self._source.open()
            self._read_images(stopping)
        except Exception as failure:  # noqa: BLE001  raised again by connect() or latest()
            self._failure = failure
        finally:
            self._delivers = False
            self._source.close()
            self._changed.set()

    def _read_images(self, stopping: threading.Event) -> None:
        failed = 0
        while not stopping.is_set():
            try:
                image = self._source.read()
            except FrameMissing as missing:
                failed += 1
                self._count(failed_reads=1)
                stopping.wait(_PAUSE_S)
                if failed >= _FAILED_READS_TO_RECONNECT and self._counts.frames:
                    self._reconnect(stopping, missing)
                    failed = 0
                continue
            except FramesEnded as end:
                raise DeviceNotConnected(
                    f"{self._source.description} has ended", code="camera.ended"
                ) from end
            failed = 0
            self._keep(image)

    def _keep(self, image: Array) -> None:
        image.setflags(write=False)
        with self._lock:
            number = self._counts.frames + 1
            self._counts = replace(self._counts, frames=number)
            self._frame = CameraFrame(image, self._clock.now(), number)
        self._delivers = True
        self._changed.set()

    def _count(self, *, failed_reads: int = 0, reconnects: int = 0) -> None:
        with self._lock:
            self._counts = replace(
                self._counts,
                failed_reads=self._counts.failed_reads + failed_reads,
                reconnects=self._counts.reconnects + reconnects,
            )

    def _reconnect(self, stopping: threading.Event, cause: FrameMissing) -> None:
        """Open the source again, with growing pauses, until it delivers."""
        self._delivers = False
        give_up_at = time.monotonic() + self._limits.reconnect_s
        wait_s = _FIRST_WAIT_S
        while not stopping.wait(wait_s):
            self._source.close()
            self._count(reconnects=1)
            try:
                self._source.open()
                image = self._source.read()
            except (DeviceNotConnected, FrameMissing) as failed:
                if time.monotonic() > give_up_at:
                    raise DeviceNotConnected(
                        f"{self._source.description} is gone ({cause}; "
                        f"tried to reconnect for {self._limits.reconnect_s:g} s: {failed})",
                        code="camera.gone",
                    ) from failed
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            else:
                self._keep(image)
                return
