"""What the parent of a recording does for every finished episode, and in the end, alone.

    python -m measurements.recording_parent [--episodes=2000] [--frames=80] [--size=128]
        [--codec=png|h264|av1] [--group=32] [--merge=true] [--folder=DIR]

Workers make takes; the parent appends them, `group` at a time where they come fast, and closes.
Here ten takes of smooth moving pictures are copied before every append (not counted), so that
nothing but the parent's own work is in the seconds: of the first and the last tenth of the
episodes, and of `close`. Then the dataset is merged with itself, as `proctor data merge` does:
twice as many episodes in all.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measurements.command import machine, say

from proctor.datasets.edit import operations
from proctor.datasets.edit.build import build
from proctor.datasets.edit.place import new_folder
from proctor.datasets.edit.recipe import open_source
from proctor.datasets.frames.encoder import codec_named
from proctor.datasets.writer import DatasetWriter
from proctor.datasets.writing.take import Take, TakeWriter, read_take
from proctor.features import ACTION, IMAGE, STATE, Array

OPTIONS = {
    "episodes": "2000",
    "frames": "80",
    "size": "128",
    "codec": "png",
    "group": "32",
    "merge": "true",
    "folder": "",
}
FPS = 80
_DIFFERENT = 10


def pictures(frames: int, size: int, seed: int) -> Array:
    """Return smooth pictures that move, with the grain of a renderer; uint8 [T, H, W, 3]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size] / size
    grain = rng.normal(0, 2, (size, size, 3))
    waves = [128 + 100 * np.sin(4 * np.stack([x, y, x + y], -1) + 0.05 * t) for t in range(frames)]
    return np.clip(np.asarray(waves) + grain, 0, 255).astype(np.uint8)


def make_take(writer: DatasetWriter, folder: Path, frames: int, seed: int) -> Take:
    rng = np.random.default_rng(seed)
    take = TakeWriter(folder, writer.info, writer.codec)
    numbers = rng.normal(size=(frames, 8)).astype(np.float32)
    for picture, row in zip(
        pictures(frames, writer.info.shape(IMAGE)[0], seed), numbers, strict=True
    ):
        take.add_frame({IMAGE: picture, STATE: row[:4], ACTION: row[4:]}, f"task {seed}")
    return take.finish()


def main(words: list[str]) -> None:
    options = OPTIONS | dict(word.removeprefix("--").split("=", 1) for word in words)
    episodes, frames, size, group = (
        int(options[name]) for name in ("episodes", "frames", "size", "group")
    )
    print(machine())
    stored = "image" if options["codec"] == "png" else "video"
    numbers = {"dtype": "float32", "shape": [4], "names": None}
    names = ["height", "width", "channels"]
    features = {
        IMAGE: {"dtype": stored, "shape": [size, size, 3], "names": names},
        STATE: numbers,
        ACTION: numbers,
    }
    codec = codec_named("h264" if stored == "image" else options["codec"])
    with tempfile.TemporaryDirectory(dir=options["folder"] or None) as folder:
        root = Path(folder, "dataset")
        writer = DatasetWriter.create(root, FPS, features, codec)
        takes = [make_take(writer, Path(folder, f"t{i}"), frames, i) for i in range(_DIFFERENT)]
        spent = []
        for first in range(0, episodes, group):
            copies = [
                Path(shutil.copytree(takes[i % _DIFFERENT].folder, Path(folder, f"copy{i}")))
                for i in range(first, min(first + group, episodes))
            ]
            start, cpu = time.perf_counter(), time.process_time()
            writer.append_all([read_take(copy) for copy in copies])
            took = np.array([time.perf_counter() - start, time.process_time() - cpu])
            spent += [took / len(copies)] * len(copies)
        each = 1000 * np.asarray(spent)
        tenth = max(1, episodes // 10)
        for name, part in (("first", each[:tenth]), ("last", each[-tenth:]), ("all", each)):
            wall, cpu = part.mean(axis=0)
            what = f"{options['codec']}: append, an episode, {name}"
            say(what, f"{wall:.1f} ms", f"{cpu:.1f} ms CPU")
        start, cpu = time.perf_counter(), time.process_time()
        assert writer.close() is None
        _say_took(f"{options['codec']}: close, {episodes} episodes", start, cpu)
        if options["merge"] != "true":
            return
        start, cpu = time.perf_counter(), time.process_time()
        recipe = operations.merge([open_source(root), open_source(root)])
        built = build(recipe, new_folder(Path(folder, "merged")))
        assert built.info.total_episodes == 2 * episodes
        assert not built.again
        _say_took(f"{options['codec']}: merge with itself, {2 * episodes} episodes", start, cpu)


def _say_took(name: str, start: float, cpu: float) -> None:
    say(
        name,
        f"{time.perf_counter() - start:.2f} s",
        f"{time.process_time() - cpu:.2f} s CPU",
    )


if __name__ == "__main__":
    main(sys.argv[1:])
