"""What a frame of a dataset's video costs: reopening, kept open, in order, scaled, from the cache.

    python measurements/dataset_frames.py [--size=480] [--frames=600] [--batches=6] [--codec=av1]

Makes a video, asks for batches of 64 frames in random order in each way, and prints frames per
second of CPU time of this one process (one decoding thread) and ratios to the first way. CPU time,
so that other work on the machine spoils the ratios little; several passes, the best counts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.cache_settings import CacheKind, FrameCacheSettings
from proctor.datasets.format.episodes import Episodes, Spans
from proctor.datasets.format.info import Info, video_file
from proctor.datasets.frames.decoder import Pixels
from proctor.datasets.frames.encoder import VideoEncoder, codec_named
from proctor.datasets.frames.video import FrameReader, FrameRequest
from proctor.datasets.reading.cached import CachedSource, Kept
from proctor.datasets.reading.frame_source import VideoSource

FPS, BATCH, SMALL = 30, 64, (128, 128)
KEY = "observation.images.top"
Asked = list[np.ndarray[Any, Any]]


def make_source(root: Path, size: int, frames: int, codec: str) -> VideoSource:
    """Film a noisy landscape that drifts, with a disc that crosses it; one episode."""
    names = ["height", "width", "channels"]
    entry = {"dtype": "video", "shape": [size, size, 3], "names": names}
    info = Info(fps=FPS, features={KEY: entry}, total_episodes=1, total_frames=frames)
    rng = np.random.default_rng(0)
    coarse = rng.integers(40, 200, (24, 24, 3)).astype(np.float32)
    land = np.kron(coarse, np.ones((2 * size // 24 + 1, 2 * size // 24 + 1, 1)))
    land += rng.normal(0, 4, land.shape)
    y, x = np.mgrid[:size, :size]
    encoder = VideoEncoder(video_file(root, info, KEY, 0, 0), codec_named(codec), FPS, size, size)
    for i in range(frames):
        shift = i % size
        picture = land[shift // 4 : shift // 4 + size, shift // 2 : shift // 2 + size].copy()
        picture[(y - size / 2) ** 2 + (x - i * 3 % size) ** 2 < (size / 8) ** 2] = (200, 30, 30)
        encoder.add(picture.clip(0, 255).astype(np.uint8))
    encoder.finish()
    one, zero = np.array([frames]), np.zeros(1, np.int64)
    spans = {KEY: Spans(zero, zero, np.zeros(1), one / FPS)}
    episodes = Episodes(zero, one, zero, zero, zero, one, [("look",)], spans)
    return VideoSource(root, info, episodes, KEY, reader=FrameReader(threads=1))


def reopening(path: Path, index: int) -> Any:
    """Open the video, go to one frame and close it, as simple loaders do."""
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        container.seek(round(index / FPS / stream.time_base), stream=stream)
        for frame in container.decode(stream):
            if frame.time >= index / FPS - 1e-4:
                return frame.to_ndarray(format="rgb24")
    return None


def frames_per_s(read: Callable[[Any], Any], asked: Asked, passes: int = 3) -> float:
    """Return the frames per second of CPU time, the best of several passes."""
    best = float("inf")
    for _ in range(passes):
        start = time.process_time()
        for indices in asked:
            read(indices)
        best = min(best, time.process_time() - start)
    return sum(map(len, asked)) / best


def ways(source: VideoSource, root: Path) -> dict[str, Callable[[Any], Any]]:
    """Return the ways to get a batch, by name."""
    path = video_file(source.root, source.info, KEY, 0, 0)
    reader = FrameReader(threads=1)
    small = VideoSource(source.root, source.info, source.episodes, KEY, SMALL, reader)

    def requests(indices: Any) -> list[FrameRequest]:
        return [FrameRequest(path, int(index), FPS) for index in indices]

    def kept(kind: CacheKind, of: VideoSource) -> Callable[[Any], Any]:
        settings = FrameCacheSettings(kind, 100.0, str(root / "cache"))
        cache = CachedSource(of, settings, Kept("measured", np.arange(1)), KEY)
        cache.fill(np.arange(1))
        return lambda indices: cache.read(np.zeros(len(indices), np.int64), indices)

    small_name = f"{SMALL[0]}x{SMALL[1]}"
    found: dict[str, Callable[[Any], Any]] = {
        "reopening for every frame": lambda indices: [reopening(path, int(i)) for i in indices],
        "kept open, as they come": lambda indices: [reader.read([r]) for r in requests(indices)],
        "kept open, in order": lambda indices: reader.read(requests(indices)),
        f"in order, to {small_name}": lambda i: reader.read(requests(i), Pixels(size=SMALL)),
        "every frame once (filling)": lambda i: reader.read(
            requests(np.sort(i[0] + np.arange(64)))
        ),
    }
    for kind in (CacheKind.RAM, CacheKind.DISK):
        found[f"cache, {kind.value}"] = kept(kind, source)
        found[f"cache, {kind.value}, {small_name}"] = kept(kind, small)
    for name, of in (("memmap", source), (f"memmap, {small_name}", small)):
        shape = (int(of.lengths[0]), *of.shape)
        nbytes = int(np.prod(shape))
        file = next(p for p in root.glob("cache/*/frames.bin") if p.stat().st_size == nbytes)
        mapped = np.memmap(file, np.uint8, "r", shape=shape)
        found[f"the same file as {name}"] = lambda indices, mapped=mapped: mapped[indices]
    return found


def main() -> None:
    given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
    size, frames = int(given.get("size", 480)), int(given.get("frames", 600))
    rng = np.random.default_rng(1)
    asked = [rng.integers(0, frames - BATCH, BATCH) for _ in range(int(given.get("batches", 6)))]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        source = make_source(root, size, frames, given.get("codec", "av1"))
        baseline = None
        for name, read in ways(source, root).items():
            read(asked[0])
            rate = frames_per_s(read, asked)
            baseline = baseline or rate
            print(f"{name:<32} {rate:10,.0f} frames/s of CPU time  {rate / baseline:8.2f}x")


if __name__ == "__main__":
    main()
