"""Frames of videos, decoded in the order that costs least and returned in the order asked for."""

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
from proctor.system.platform_info import usable_cores

TOLERANCE_S = 1e-4
"""How far from the time asked for a frame may lie, as in LeRobot."""
RGB = Pixels()
_WORTH_A_THREAD = 4
"""Frames: fewer are decoded sooner than handed to another thread."""


@dataclass(frozen=True)
class FrameRequest:
    """One frame of a video: the ``index``-th at ``fps`` a second, or the one at ``seconds``."""

    path: Path
    index: int
    fps: float
    seconds: float | None = None
    """Its time in the file where that is known better than ``index / fps``."""

    @property
    def time_s(self) -> float:
        """When it is shown."""
        return self.index / self.fps if self.seconds is None else self.seconds


@dataclass(frozen=True)
class VideoFacts:
    """What a video file says of itself."""

    codec: str
    """The format: ``av1``, ``h264``, ``hevc``, ``mpeg4`` ..."""
    pix_fmt: str
    width: int
    height: int
    fps: float
    n_frames: int
    duration_s: float
    has_audio: bool


def probe(path: Path) -> VideoFacts:
    """Return what a video file says of itself; nothing is decoded.

    Raises:
        DatasetError: there is none, or it is none.
    """
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
    """Frames of one file in order of time: the work of one thread."""

    path: Path
    times: tuple[float, ...]
    places: tuple[tuple[int, ...], ...]
    """For each time, where in the answer it goes."""


@dataclass
class FrameReader:
    """Reads frames of many videos, keeping some of them open.

    May be used by several threads, and in a process forked or pickled from this one.
    """

    max_open: int = 32
    threads: int = field(default_factory=lambda: min(8, usable_cores()))
    tolerance_s: float = TOLERANCE_S
    _idle: OrderedDict[int, VideoDecoder] = field(init=False, repr=False)
    """Least recently used first."""
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
        """Return the frames in the order asked for, [n, H, W, C] as ``pixels`` says.

        ``threads`` that decode them: for who reads on several of their own.

        Raises:
            DatasetError: a video is missing, damaged or in a codec that cannot be decoded here, has
                no frame at such a time, or the pictures differ in size.
        """
        if self._process != os.getpid():  # forked: what is open is read by our parent too
            self._begin()
        if not requests:
            raise ValueError("no frames asked for")
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
        """Close what is open."""
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
                most = max(self.threads, usable_cores())  # of all who read at the same time
                self._executor = ThreadPoolExecutor(most, "frames")
            return self._executor

    def _run(self, run: _Run, pixels: Pixels, out: Array) -> None:
        with self._borrowed(run.path) as decoder:
            for time_s, places in zip(run.times, run.places, strict=True):
                picture = decoder.read(time_s, self.tolerance_s, pixels)
                if picture.shape != out.shape[1:]:
                    raise DatasetError(
                        f"{run.path} has pictures of {decoder.width}x{decoder.height}, others of "
                        f"this batch {out.shape[2]}x{out.shape[1]}",
                        code="dataset.wrong-image-size",
                    )
                for place in places:
                    out[place] = picture

    @contextlib.contextmanager
    def _borrowed(self, path: Path) -> Iterator[VideoDecoder]:
        """Yield a decoder of ``path`` that nobody else uses; after an error it is not kept."""
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
    """Return the work in order of file and time, cut so that each thread gets some."""
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
