"""Reading and editing datasets compared with LeRobot: the same files, one table.

    python -m measurements datasets [numbers video open delete] [--ours]

LeRobot is in PROCTOR_PEER_VENV (`make bench-peers` installs it); ``--ours`` measures Proctor alone.
LeRobot reads as in its training, with a DataLoader of 0, 2 and 4 workers; the best counts. Proctor
reads batches in the calling process. Both read in random order, in separate processes. The table is
Markdown, for docs/measurements.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from measurements.command import Part, make_parser, proctor, run_parts
from measurements.dataset_samples import write_numbers, write_video
from measurements.peers.install import ROOT, peer_python, require_lerobot

BATCH = 32
CHUNK = [i / 30 for i in range(50)]
HEAD = "| | LeRobot | Proctor | ratio | target | memory |\n|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Taken:
    """The work of one side: samples, seconds, peak memory of its process."""

    samples: int
    seconds: float
    peak_mb: float

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


@dataclass(frozen=True)
class Sizes:
    """How much is measured, and whether LeRobot is measured."""

    ours: bool
    tiny: bool

    def pick(self, normal: int, tiny: int) -> int:
        """Return one of two sizes."""
        return tiny if self.tiny else normal


def lerobot(*words: str) -> Taken:
    """Run LeRobot's side."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as home:  # an empty HF cache: tables are converted once
        environment |= {"HF_HOME": home}
        # -P: the script's folder has modules whose names LeRobot imports.
        script = ROOT / "measurements/peers/lerobot_datasets.py"
        command = [str(peer_python()), "-P", str(script), *words]
        return _run(command, environment)[-1]


def ours(*words: str) -> list[Taken]:
    """Run Proctor's side."""
    return _run([sys.executable, "-m", "measurements.dataset_reading", *words], dict(os.environ))


def _run(command: Sequence[str], environment: dict[str, str]) -> list[Taken]:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)  # noqa: S603  our own command
    if done.returncode:
        raise SystemExit(done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return [Taken(**json.loads(line)) for line in lines]


def best_of_lerobot(sizes: Sizes, root: Path, samples: int, deltas: object) -> Taken | None:
    """Return LeRobot's result with its best number of workers; None without LeRobot."""
    if sizes.ours:
        return None
    words = ["read", str(root), str(samples), str(BATCH)]
    tried = [lerobot(*words, str(workers), json.dumps(deltas)) for workers in (0, 2, 4)]
    return max(tried, key=lambda taken: taken.rate)


def row(name: str, theirs: Taken | None, our: Taken, target: str, unit: str = "/s") -> None:
    """Print one row; ``unit`` is "/s" for rates and "s" for seconds."""
    rates = unit == "/s"
    cells = [name, "n/a", f"{our.rate:,.0f}/s" if rates else f"{our.seconds:.2f} s", "n/a", target]
    if theirs is not None:
        ratio = our.rate / theirs.rate if rates else theirs.seconds / our.seconds
        cells[1] = f"{theirs.rate:,.0f}/s" if rates else f"{theirs.seconds:.2f} s"
        cells[3] = f"**{ratio:.1f}x**"
    print(f"| {' | '.join([*cells, f'{our.peak_mb:.0f} MB'])} |", flush=True)


def numbers(folder: Path, sizes: Sizes) -> None:
    """Frames and action chunks without images."""
    root = folder / "numbers"
    write_numbers(root, episodes=sizes.pick(200, 4), length=sizes.pick(300, 20))
    for name, deltas in (
        ("numbers, single frames", None),
        ("numbers, chunks of 50 actions", {"action": CHUNK}),
    ):
        theirs = best_of_lerobot(sizes, root, 1000, deltas)
        (our,) = ours("read", str(root), str(sizes.pick(50000, 50)), str(BATCH), json.dumps(deltas))
        row(f"{name}, samples/s", theirs, our, ">= 10x")


def video(folder: Path, sizes: Sizes) -> None:
    """Decoding videos, without and with the frame cache."""
    root, side = folder / "video", sizes.pick(480, 64)
    write_video(root, episodes=sizes.pick(12, 2), length=sizes.pick(100, 10), size=side)
    deltas = {"action": CHUNK}
    theirs = best_of_lerobot(sizes, root, 256, deltas)
    samples = str(sizes.pick(2000, 20))
    (our,) = ours("read", str(root), samples, str(BATCH), json.dumps(deltas))
    row(f"video {side}x{side}, samples/s", theirs, our, ">= 2x")
    for kind, size in (("ram", 128), ("disk", 128), ("ram", side), ("disk", side)):
        cache = str(folder / f"cache{size}")
        first, again = ours("cached", str(root), str(BATCH), str(size), kind, cache)
        row(f"cache={kind} at {size}x{size}, first epoch", theirs, first, "")
        row(f"cache={kind} at {size}x{size}, later epochs", theirs, again, ">= 20x, <= 2 GB")


def opening(folder: Path, sizes: Sizes) -> None:
    """Opening a dataset of very many episodes."""
    root, episodes = folder / "many", sizes.pick(10_000, 50)
    write_numbers(root, episodes=episodes, length=20, with_video=True)
    theirs = None if sizes.ours else lerobot("open", str(root))
    (our,) = ours("open", str(root))
    row(f"opening {episodes:,} episodes of 20 frames, one camera", theirs, our, "<= 0.5 s", "s")


def delete(folder: Path, sizes: Sizes) -> None:
    """Deleting 40% of the episodes; ours is the whole command, start-up included."""
    recorded, root = folder / "recorded", folder / "demos"
    write_video(recorded, 10, length=sizes.pick(100, 5), size=sizes.pick(480, 64))
    copies = [str(recorded)] * sizes.pick(20, 2)
    proctor("data", "merge", *copies, f"--output={root}")
    n = 10 * len(copies)
    gone = [episode for episode in range(n) if episode % 5 in (1, 3)]
    began = time.perf_counter()
    listed = ",".join(map(str, gone))
    proctor("data", "delete", str(root), f"--episodes={listed}", f"--output={folder / 'fewer'}")
    our = Taken(n, time.perf_counter() - began, 0.0)
    other = str(folder / "fewer-lerobot")
    theirs = None if sizes.ours else lerobot("delete", str(root), other, json.dumps(gone))
    row(f"deleting {len(gone)} of {n} episodes with video", theirs, our, "", "s")


PARTS = {"numbers": numbers, "video": video, "open": opening, "delete": delete}


def main(words: Sequence[str]) -> None:
    """Run the named parts, or all."""
    parser = make_parser("datasets", __doc__, list(PARTS))
    parser.add_argument("--ours", action="store_true", help="without LeRobot")
    given = parser.parse_args(words)
    if not given.ours:
        require_lerobot()
    sizes = Sizes(given.ours, given.tiny)
    parts: dict[str, Part] = {name: partial(part, sizes=sizes) for name, part in PARTS.items()}
    run_parts(given.parts, parts, HEAD)
