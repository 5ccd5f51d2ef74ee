"""Shows a control loop in Rerun (needs the extra ``rerun``), in a thread of its own.

The loop stores references in a short queue and goes on. A full queue drops its oldest tick, for
display only: recordings are not concerned. Entity paths are LeRobot's: ``observation.<key>`` and
``action.<key>``, where the action is the one that was sent.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proctor.config.sections.display import DisplayFlags
from proctor.control.loop.frame_queue import short_thread_switches
from proctor.errors import UsageError, strip_control_codes
from proctor.features import Array
from proctor.robots.base import Action, RobotObservation
from proctor.system.platform.optional import LOAD_ERRORS, import_failure

_QUEUE = 8
"""Ticks that wait for the thread: a quarter of a second at 30 Hz."""
_LOOK_S = 0.01
"""How often the thread looks for ticks: a lock could make the loop wait for it."""
_CLOSE_S = 2.0
"""Seconds that the end of a session waits for a viewer that does not answer."""
_CONNECT_S = 3.0
_PORT = 9876
_MEMORY = "10%"


@dataclass(frozen=True)
class DisplayedTick:
    """A tick that waits to be shown."""

    time_s: float
    """Seconds on the robot's clock."""
    observation: RobotObservation
    sent: Action


def load_rerun() -> Any:
    """Import Rerun."""
    try:
        import rerun
    except LOAD_ERRORS as error:
        raise import_failure(error, "rerun", "rerun", "rerun-sdk") from None
    return rerun


class RerunDisplay:
    """The thread that logs ticks to a Rerun stream."""

    def __init__(self, rerun: Any, stream: Any, *, compress: bool = False) -> None:
        self._rerun, self._stream, self._compress = rerun, stream, compress
        self._waiting: deque[DisplayedTick] = deque(maxlen=_QUEUE)
        self._closing = threading.Event()
        self._images: dict[str, Array] = {}
        self._given = 0
        self.shown = 0
        """Ticks that were logged."""
        self._thread = threading.Thread(target=self._run, name="rerun", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Ticks that were not shown, or wait to be."""
        return self._given - self.shown

    def show(self, tick: DisplayedTick) -> None:
        """Hand a tick over; it never waits."""
        self._given += 1
        self._waiting.append(tick)

    def close(self) -> None:
        """Log what waits; give up on a viewer that does not answer in time."""
        self._closing.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            while not self._closing.is_set() or self._waiting:
                self._closing.wait(_LOOK_S)
                self._log_waiting()
            self._stream.flush()
        except Exception as error:  # noqa: BLE001 - a viewer never ends a session
            reason = strip_control_codes(str(error), 300)
            print(f"note: Rerun shows no more: {reason}", file=sys.stderr, flush=True)

    def _log_waiting(self) -> None:
        while self._waiting:
            self._log(self._waiting.popleft())
            self.shown += 1

    def _log(self, tick: DisplayedTick) -> None:
        self._stream.set_time("time", duration=tick.time_s)
        self._log_values("observation", tick.observation)
        self._log_values("action", tick.sent)

    def _log_values(self, prefix: str, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            path = key if key.startswith(f"{prefix}.") else f"{prefix}.{key}"
            if not isinstance(value, np.ndarray):
                self._stream.log(path, self._rerun.Scalars(float(value)))
            elif self._images.get(path) is not value:  # a camera repeats the same object
                self._images[path] = value
                # Static: the viewer keeps the newest image only, as LeRobot's does.
                self._stream.log(path, self._image(value), static=True)

    def _image(self, image: Array) -> Any:
        if image.ndim == 2 or image.shape[-1] == 1:
            return self._rerun.DepthImage(image.reshape(image.shape[:2]))
        shown = self._rerun.Image(image)
        return shown.compress() if self._compress and image.dtype == np.uint8 else shown


@contextmanager
def rerun_display(flags: DisplayFlags, name: str) -> Iterator[RerunDisplay | None]:
    """Show a session in Rerun during the block, if --display_data asks for it."""
    if not flags.display_data:
        yield None
        return
    rerun = load_rerun()
    # Without a recording id, Rerun asks the system for the user's name.
    stream = rerun.RecordingStream("proctor", recording_id=f"{name} {time.time_ns()}")
    _open_viewer(stream, flags)
    display = RerunDisplay(
        rerun, stream, compress=flags.display_compressed_images or flags.display_ip is not None
    )
    try:
        with short_thread_switches():
            yield display
    finally:
        display.close()
        if display.dropped:
            print(f"Rerun was too slow for {display.dropped} ticks", file=sys.stderr, flush=True)


def _open_viewer(stream: Any, flags: DisplayFlags) -> None:
    port = flags.display_port or _PORT
    try:
        if flags.display_ip is not None:
            # Rerun itself would wait for a viewer that is not there until the end.
            socket.create_connection((flags.display_ip, port), _CONNECT_S).close()
            stream.connect_grpc(f"rerun+http://{flags.display_ip}:{port}/proxy")
        else:
            memory = os.environ.get("LEROBOT_RERUN_MEMORY_LIMIT", _MEMORY)
            with _own_programs():
                stream.spawn(port=port, memory_limit=memory, hide_welcome_screen=True)
    except (RuntimeError, ValueError, OSError) as error:
        where = "started" if flags.display_ip is None else f"reached at {flags.display_ip}:{port}"
        reason = strip_control_codes((str(error).splitlines() or [""])[0], 300)
        raise UsageError(
            f"--display_data: the Rerun viewer cannot be {where}: {reason}",
            code="display.no-viewer",
        ) from None


@contextmanager
def _own_programs() -> Iterator[None]:
    """Find programs beside Python too: Rerun's viewer is there in an environment of its own."""
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{before}{os.pathsep}{Path(sys.executable).parent}"
    try:
        yield
    finally:
        os.environ["PATH"] = before
