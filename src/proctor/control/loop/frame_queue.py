"""The queue between a control loop and the dataset: a thread encodes and writes.

The control loop puts frames and episode ends into the queue and keeps its period. The thread does
the slow work in the same order, so images and rows always belong together. A full queue makes the
loop wait: frames are never dropped. The time that the loop waited is counted.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from proctor.datasets.writer import DatasetWriter
from proctor.datasets.writing.frame import own_features

_BYTES = 2**28
_FEWEST_FRAMES, _MOST_FRAMES = 30, 900
_CHECK_S = 0.1
"""How often a waiting control loop looks whether the thread has failed."""
_SWITCH_S = 5e-4

Job = Callable[[], None]


def default_capacity(writer: DatasetWriter) -> int:
    """Return how many frames fit in 256 MiB, between 30 and 900."""
    size = 1
    for key in own_features(writer.info):
        count = 1
        for side in writer.info.shape(key):
            count *= side
        size += count if key in writer.info.cameras else count * 8
    return max(_FEWEST_FRAMES, min(_MOST_FRAMES, _BYTES // size))


@contextmanager
def short_thread_switches() -> Iterator[None]:
    """Let threads take turns every 0.5 ms, so that encoding does not delay the control loop.

    Python's default of 5 ms would add up to 5 ms to each read of the bus.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class FrameQueue:
    """Hands frames and episode ends to a thread that owns ``writer`` until ``close``."""

    def __init__(self, writer: DatasetWriter, capacity: int | None = None) -> None:
        """Start the thread; at most ``capacity`` frames wait for it."""
        self._writer = writer
        self.features = frozenset(own_features(writer.info))
        """Keys of the frames that the dataset takes."""
        self._jobs: queue.Queue[Job | None] = queue.Queue(capacity or default_capacity(writer))
        self._error: BaseException | None = None
        self.waited_s = 0.0
        """Seconds that the control loop waited for room in the queue."""
        self.longest = 0
        """Most jobs that were waiting at once."""
        self._thread = threading.Thread(target=self._work, name="dataset-writer", daemon=True)
        self._thread.start()

    def add(self, frame: Mapping[str, Any], task: str) -> None:
        """Append a frame to the open episode; wait while the queue is full."""
        self._put(lambda: self._writer.add_frame(frame, task))

    def save(self, on_saved: Callable[[int], None]) -> None:
        """End the episode; ``on_saved`` gets its number, in the thread, when it is on the disk."""
        self._put(lambda: on_saved(self._writer.end_episode()))

    def discard(self) -> None:
        """Throw the open episode away."""
        self._put(self._writer.discard_episode)

    def remove_last(self) -> None:
        """Remove the episode that was saved last."""
        self._put(self._writer.remove_last_episode)

    def run(self, job: Job) -> None:
        """Call ``job`` in the thread, after everything before it."""
        self._put(job)

    def flush(self) -> None:
        """Wait until everything is on the disk."""
        done = threading.Event()
        self._put(done.set)
        while not done.wait(_CHECK_S):
            self._raise_failure()
        self._raise_failure()

    def close(self) -> None:
        """End the thread after the waiting jobs; errors of those are raised by ``flush`` only."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()

    def _put(self, job: Job) -> None:
        self._raise_failure()
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self._wait_for_room(job)
        self.longest = max(self.longest, self._jobs.qsize())

    def _wait_for_room(self, job: Job) -> None:
        began = time.perf_counter()
        try:
            while True:
                self._raise_failure()
                try:
                    return self._jobs.put(job, timeout=_CHECK_S)
                except queue.Full:
                    continue
        finally:
            self.waited_s += time.perf_counter() - began

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        """Do the jobs in order; after a failure, only empty the queue."""
        while (job := self._jobs.get()) is not None:
            if self._error is None:
                try:
                    job()
                except BaseException as error:  # noqa: BLE001  raised again in the control loop
                    self._error = error
