"""Read frames of many videos, decoded in the cheapest order and returned as requested."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from proctor.datasets.frames.decoder import Pixels, VideoDecoder, open_video
from proctor.errors import DatasetError
from proctor.features import Array
from proctor.system.platform.platform_info import usable_cores

TOLERANCE_S = 1e-4
"""Largest difference between a requested and a decoded timestamp, as in LeRobot."""
RGB = Pixels()
_WORTH_A_THREAD = 4
"""Least number of frames that are worth another thread."""


@dataclass(frozen=True)
class FrameRequest:
    """A frame of a video: number ``index`` at ``fps``, or the one at ``seconds``."""

    path: Path
    index: int
    fps: float
    seconds: float | None = None
    """Its timestamp in the file, if it differs from ``index / fps``."""

    @property
    def time_s(self) -> float:
        """Its timestamp in seconds."""
        return self.index / self.fps if self.seconds is None else self.seconds


@dataclass(frozen=True)
class VideoFacts:
    """The properties in a video file's header."""

    codec: str
    """The codec: ``av1``, ``h264``, ``hevc``, ``mpeg4`` ..."""
    pix_fmt: str
    width: int
    height: int
    fps: float
    n_frames: int
    duration_s: float
    has_audio: bool


def probe(path: Path) -> VideoFacts:
    """Read a video file's header, without decoding."""
    with open_video(path) as (container, stream):
        context = stream.codec_context
        return VideoFacts(
            stream.codec.canonical_name,
            context.pix_fmt or "unknown",
            context.width,
            context.height,
            float(stream.average_rate or 0),
            stream.frames,
            float((stream.duration or 0) * stream.time_base),
            bool(container.streams.audio),
        )


@dataclass(frozen=True)
class _Run:
    """Frames of one file in order of time, which one thread decodes."""

    path: Path
    times: tuple[float, ...]
    places: tuple[tuple[int, ...], ...]
    """For each timestamp, the positions in the result."""


@dataclass
class FrameReader:
    """Reads frames of many videos and keeps some of them open.

    It is thread-safe, and works in forked processes and after pickling.
    """

    max_open: int = 32
    threads: int = field(default_factory=lambda: min(8, usable_cores()))
    tolerance_s: float = TOLERANCE_S
    _idle: OrderedDict[int, VideoDecoder] = field(init=False, repr=False)
    """Open decoders, least recently used first."""
    _executor: ThreadPoolExecutor | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._begin()

    def __getstate__(self) -> tuple[int, int, float]:
        return self.max_open, self.threads, self.tolerance_s

    def __setstate__(self, state: tuple[int, int, float]) -> None:
        self.max_open, self.threads, self.tolerance_s = state
        self._begin()

    def read(
        self, requests: Sequence[FrameRequest], pixels: Pixels = RGB, threads: int | None = None
    ) -> Array:
        """Return the frames in the requested order, [n, H, W, C] in the format of ``pixels``.

        ``threads`` limits the decoder's threads, for a caller with threads of its own.
        """
        if self._process != os.getpid():  # forked: the parent shares the open files
            self._begin()
        if not requests:
            raise ValueError("no frames requested")
        threads = threads or self.threads
        runs = _runs(requests, threads)
        with self._borrowed(runs[0].path) as decoder:
            size = pixels.size or (decoder.height, decoder.width)
        out = np.empty((len(requests), *size, pixels.channels), pixels.dtype)
        if threads == 1 or len(runs) == 1:
            for run in runs:
                self._run(run, pixels, out)
        else:
            list(self._workers().map(lambda run: self._run(run, pixels, out), runs))
        return out

    def close(self) -> None:
        """Close all videos."""
        with self._lock:
            for decoder in self._idle.values():
                decoder.close()
            self._idle.clear()
            if self._executor is not None:
                self._executor.shutdown()
                self._executor = None

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._idle = OrderedDict()
        self._executor = None

    def _workers(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                most = max(self.threads, usable_cores())  # shared by all callers
                self._executor = ThreadPoolExecutor(most, "frames")
            return self._executor

    def _run(self, run: _Run, pixels: Pixels, out: Array) -> None:
        with self._borrowed(run.path) as decoder:
            for time_s, places in zip(run.times, run.places, strict=True):
                picture = decoder.read(time_s, self.tolerance_s, pixels)
                if picture.shape != out.shape[1:]:
                    raise DatasetError(
                        f"{run.path} has images of {decoder.width}x{decoder.height}, others in "
                        f"this batch {out.shape[2]}x{out.shape[1]}",
                        code="dataset.wrong-image-size",
                    )
                for place in places:
                    out[place] = picture

    @contextlib.contextmanager
    def _borrowed(self, path: Path) -> Iterator[VideoDecoder]:
        """Yield a decoder of ``path`` for exclusive use; after an error it is closed."""
        with self._lock:
            known = next((key for key, idle in self._idle.items() if idle.path == path), None)
            decoder = None if known is None else self._idle.pop(known)
        decoder = decoder or VideoDecoder(path)
        try:
            yield decoder
        except BaseException:
            decoder.close()
            raise
        with self._lock:
            self._idle[id(decoder)] = decoder
            while len(self._idle) > self.max_open:
                self._idle.popitem(last=False)[1].close()


def _runs(requests: Sequence[FrameRequest], threads: int) -> list[_Run]:
    """Return runs sorted by file and time, split so that every thread gets work."""
    places: dict[tuple[Path, float], list[int]] = {}
    for place, request in enumerate(requests):
        places.setdefault((request.path, request.time_s), []).append(place)
    longest = max(_WORTH_A_THREAD, -(-len(places) // threads))
    by_file: dict[Path, list[float]] = {}
    for path, time_s in sorted(places):
        by_file.setdefault(path, []).append(time_s)
    runs = []
    for path, times in by_file.items():
        for start in range(0, len(times), longest):
            part = tuple(times[start : start + longest])
            runs.append(_Run(path, part, tuple(tuple(places[path, time]) for time in part)))
    return runs
