"""Filling the cache of decoded frames: frames/s by cores, and against how it was done before.

    python measurements/cache_fill.py [--of=png,av1,h264] [--sizes=192,480,480] [--to=,128]
        [--cores=1,2,4,8,16] [--frames=1200] [--cache=ram] [--rounds=2]

Makes a dataset of each kind (PNG pictures in the tables, or videos) of so many frames, and fills a
cache with it in this process, kept to so many cores, at the size it has and scaled to ``--to``.
"Before" (until 83d7d4a): one part after the other, min(8, cores) threads of Python; of PNGs each
decodes one picture with a decoder of its own. Both by turns; the best round counts. Every way must
fill in the same bytes. Prints what of the processor a frame takes too, which other work on the
machine spoils less.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from command import machine

from proctor import datasets
from proctor.datasets.cache_settings import CacheKind, FrameCacheSettings
from proctor.datasets.frames.encoder import codec_named
from proctor.datasets.reading.cached import CachedSource, Kept
from proctor.datasets.reading.frame_source import FrameSource, TableSource
from proctor.datasets.writer import DatasetWriter
from proctor.features import Array

KEY, FPS, LENGTH = "observation.images.top", 30, 100
PNG = "png"


def parse() -> argparse.Namespace:
    """Read the command line."""
    allowed = sorted(os.sched_getaffinity(0))
    doubled = [n for n in (1, 2, 4, 8, 16, 32, 64) if n < len(allowed)]
    parser = argparse.ArgumentParser()
    parser.add_argument("--of", default="png,av1,h264", help="kinds of pictures")
    parser.add_argument("--sizes", default="192,480,480", help="of a side, of each kind")
    parser.add_argument("--to", default=",128", help="sides they are scaled to; nothing: as it is")
    parser.add_argument("--cores", default=",".join(map(str, [*doubled, len(allowed)])))
    parser.add_argument("--frames", type=int, default=1200)
    parser.add_argument("--cache", type=CacheKind, default=CacheKind.RAM)
    parser.add_argument("--rounds", type=int, default=2)
    return parser.parse_args()


def write(root: Path, kind: str, size: int, frames: int) -> None:
    """Record slopes that move, with a little noise: about as hard as a simulator's picture."""
    shape = {"shape": [size, size, 3], "names": ["height", "width", "channels"]}
    features: dict[str, dict[str, Any]] = {
        KEY: {"dtype": "image" if kind == PNG else "video", **shape},
        "action": {"dtype": "float32", "shape": [4], "names": None},
    }
    codec = None if kind == PNG else codec_named(kind)
    writer = DatasetWriter.create(root, FPS, features, codec)
    down, right = np.mgrid[:size, :size]
    grain = np.random.default_rng(0).integers(0, 4, (size, size, 3))
    for frame in range(frames):
        shade = (down // 2 + right // 3 + 3 * frame) % 200
        picture = np.roll(grain, frame, axis=1) + shade[..., None]
        action = np.zeros(4, np.float32)
        writer.add_frame({KEY: picture.astype(np.uint8), "action": action}, task="move")
        if frame % LENGTH == LENGTH - 1 or frame == frames - 1:
            writer.end_episode()
    writer.close()


class Before:
    """A camera that is read as it was before; all else is the camera's."""

    def __init__(self, source: FrameSource, cores: int) -> None:
        self._source, self._threads = source, min(8, cores)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, episodes: Array, frames: Array, threads: int | None = None) -> Array:
        """Return the pictures, by as many threads as there were."""
        del threads
        source = self._source
        if not isinstance(source, TableSource):
            return source.read(episodes, frames, self._threads)
        files = source.columns[source.key].take(source.first_row[episodes] + frames)
        out = np.empty((len(files), *source.shape), np.uint8)

        def decode(i: int) -> None:
            out[i] = one_by_one(files[i], source)

        with ThreadPoolExecutor(self._threads) as executor:
            list(executor.map(decode, range(len(files))))
        return out


def one_by_one(content: bytes, source: TableSource) -> Any:
    """Decode one picture as it was done: everything is made for it, and thrown away."""
    import av
    from av.video.reformatter import Interpolation, VideoReformatter

    height, width, _ = source.info.shape(source.key)
    context: Any = av.CodecContext.create("png", "r")
    context.options = {"max_pixels": str(4 * height * width + 4096)}
    context.thread_count = 1
    (frame,) = [*context.decode(av.Packet(content)), *context.decode(None)]
    high, wide, _ = source.shape
    area = Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.BITEXACT
    how = area if source.size else None
    made = VideoReformatter().reformat(frame, wide, high, "rgb24", interpolation=how, threads=1)
    return made.to_ndarray()


def fill(source: FrameSource, kind: CacheKind, cores: int) -> tuple[float, float, str]:
    """Fill a new cache; return the seconds, those of the processor, and what is in it."""
    episodes = np.arange(len(source.lengths))
    with tempfile.TemporaryDirectory() as folder:
        settings = FrameCacheSettings(kind, 1000.0, folder)
        cache = CachedSource(source, settings, Kept("measured", episodes), KEY)
        began, worked = time.perf_counter(), time.process_time()
        cache.fill(episodes, cores=cores)
        took = time.perf_counter() - began, time.process_time() - worked
        told = hashlib.sha256()
        for episode in episodes.tolist():
            frames = np.arange(source.lengths[episode])
            told.update(cache.read(np.full(len(frames), episode), frames).tobytes())
        cache.close()
    return *took, told.hexdigest()


def measure(root: Path, size: int | None, options: argparse.Namespace) -> None:
    """Print a row for every number of cores."""
    scaled = None if size is None else (size, size)
    dataset = datasets.open(root, image_size=scaled)
    source, n = dataset.cameras[KEY], len(dataset)
    one = np.zeros(1, np.int64)
    began = time.perf_counter()
    source.read(one, one)  # tables are read, PyAV is imported
    print(f"  first frame after {time.perf_counter() - began:.2f} s", flush=True)
    allowed, seen = sorted(os.sched_getaffinity(0)), set()
    for cores in map(int, options.cores.split(",")):
        if cores > len(allowed):
            continue
        os.sched_setaffinity(0, allowed[:cores])
        before, after = [], []
        for _ in range(options.rounds):
            before.append(fill(Before(source, cores), options.cache, 1))  # type: ignore[arg-type]
            after.append(fill(source, options.cache, cores))
        os.sched_setaffinity(0, allowed)
        seen |= {filled for _, _, filled in before + after}
        assert len(seen) == 1, "the bytes differ"
        (old, old_cpu, _), (new, new_cpu, _) = min(before), min(after)
        print(
            f"  {cores:3d} cores: before {n / old:8,.0f} frames/s ({old_cpu / n * 1e6:6,.0f} us of "
            f"CPU), now {n / new:8,.0f} ({new_cpu / n * 1e6:6,.0f}): {old / new:.2f}x",
            flush=True,
        )


def main() -> None:
    options = parse()
    print(machine())
    kinds = zip(options.of.split(","), options.sizes.split(","), strict=False)
    for kind, side in kinds:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "dataset"
            write(root, kind, int(side), options.frames)
            for to in options.to.split(","):
                scaled = f" to {to}x{to}" if to else ""
                print(f"{kind}, {side}x{side}{scaled}, cache={options.cache.value}", flush=True)
                measure(root, int(to) if to else None, options)


if __name__ == "__main__":
    main()
