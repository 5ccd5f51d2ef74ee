"""Reading datasets beside LeRobot: the same files, one after the other, one table.

    python -m measurements.datasets [numbers video open]

LeRobot is where PROCTOR_PEER_VENV says (`measurements/peers/install.py`). It reads as its training
does, by a DataLoader without workers and with two and four; its best counts. Proctor reads batches
in the process that wants them. Both in random order, in processes of their own. The table is
Markdown, for docs/performance.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measurements.beside import Part, measure_parts
from measurements.datasets_made import write_numbers, write_video
from measurements.peers.install import ROOT, peer_python

BATCH = 32
WORKERS = (0, 2, 4)
CHUNK = [i / 30 for i in range(50)]
HEAD = "| | LeRobot | Proctor | ratio | target | memory |\n|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Taken:
    """What one side needed."""

    samples: int
    seconds: float
    peak_mb: float

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds


def theirs(*words: str) -> Taken:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as home:  # HF's cache of converted tables: first use counts
        environment |= {"HF_HOME": home}
        # -P: beside the script lies this file, and LeRobot imports a library of the same name.
        command = [peer_python(), "-P", ROOT / "measurements/datasets_side.py", *words]
        return _said(command, environment)[-1]


def ours(*words: str) -> list[Taken]:
    return _said([sys.executable, "-m", "measurements.datasets_ours", *words], dict(os.environ))


def _said(command: Sequence[str | Path], environment: dict[str, str]) -> list[Taken]:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)  # noqa: S603  our own words
    if done.returncode:
        raise SystemExit(done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return [Taken(**json.loads(line)) for line in lines]


def their_best(root: Path, samples: int, deltas: object) -> Taken:
    tried = [
        theirs("read", str(root), str(samples), str(BATCH), str(n), json.dumps(deltas))
        for n in WORKERS
    ]
    return max(tried, key=lambda taken: taken.rate)


def row(name: str, their: Taken, our: Taken, target: str) -> None:
    cells = [
        name,
        f"{their.rate:,.0f}/s",
        f"{our.rate:,.0f}/s",
        f"**{our.rate / their.rate:.1f}x**",
        target,
        f"{our.peak_mb:.0f} MB",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def numbers(folder: Path) -> None:
    root = folder / "numbers"
    write_numbers(root, episodes=200, length=300)
    for name, deltas in (
        ("numbers, single frames", None),
        ("numbers, chunks of 50 actions", {"action": CHUNK}),
    ):
        their = their_best(root, 1000, deltas)
        (our,) = ours("read", str(root), "50000", str(BATCH), json.dumps(deltas))
        row(f"{name}, samples/s", their, our, ">= 10x")


def video(folder: Path) -> None:
    root = folder / "video"
    write_video(root, episodes=12, length=100, size=480)
    deltas = {"action": CHUNK}
    their = their_best(root, 256, deltas)
    (our,) = ours("read", str(root), "2000", str(BATCH), json.dumps(deltas))
    row("video 480x480, samples/s", their, our, ">= 2x")
    for kind, size in (("ram", 128), ("disk", 128), ("ram", 480), ("disk", 480)):
        cache = str(folder / f"cache{size}")
        first, again = ours("cached", str(root), str(BATCH), str(size), kind, cache)
        row(f"cache={kind} at {size}x{size}, first epoch", their, first, "")
        row(f"cache={kind} at {size}x{size}, from the second", their, again, ">= 20x, <= 2 GB")


def opening(folder: Path) -> None:
    root = folder / "many"
    write_numbers(root, episodes=10_000, length=20, with_video=True)
    their, (our,) = theirs("open", str(root)), ours("open", str(root))
    cells = [
        "opening 10,000 episodes of 20 frames, one camera",
        f"{their.seconds:.2f} s",
        f"{our.seconds:.2f} s",
        f"**{their.seconds / our.seconds:.1f}x**",
        "<= 0.5 s",
        f"{our.peak_mb:.0f} MB",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


PARTS: dict[str, Part] = {"numbers": numbers, "video": video, "open": opening}


if __name__ == "__main__":
    measure_parts(sys.argv[1:], PARTS, HEAD)
