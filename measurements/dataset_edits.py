"""How long deleting 40% of 200 episodes takes, that packets stay the same, and LeRobot beside it.

    python measurements/dataset_edits.py [--episodes=200] [--frames=100] [--size=480]
                                         [--peer=PYTHON] [--kills=100]

The dataset: one camera (AV1 as LeRobot records it), a state and an action, every fifth two of
five episodes deleted. PYTHON is that of a venv with LeRobot (measurements/peers/install.py); it
deletes the same episodes from the same dataset, its imports not counted. With --kills, edits in
place are killed at random moments instead, and after each the dataset is opened and counted.
"""

from __future__ import annotations

import json
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np

from proctor.datasets.edit import operations
from proctor.datasets.edit.build import build, edit
from proctor.datasets.edit.place import new_folder
from proctor.datasets.edit.recipe import open_source
from proctor.datasets.writer import DatasetWriter
from proctor.machine.system import git_commit, usable_cores

OPTIONS = {"episodes": "200", "frames": "100", "size": "480", "peer": "", "kills": "0"}
CAMERA = "observation.images.top"
RECORDED = 10
"""Episodes that are encoded; all others are copies of these."""
PEER = """
import json, sys, time
from pathlib import Path
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.datasets.dataset_tools import delete_episodes
for line in sys.stdin:
    source, out, gone = json.loads(line)
    dataset = LeRobotDataset("me/demos", root=source)
    begin = time.perf_counter()
    if gone:
        delete_episodes(dataset, gone, output_dir=Path(out), repo_id="me/fewer")
    said = {"seconds": time.perf_counter() - begin, "frames": len(dataset)}
    dataset[len(dataset) - 1]
    print(json.dumps(said), flush=True)
"""
"""LeRobot, which opens the datasets it is told of, and deletes episodes from them."""


class Peer:
    """LeRobot in a process of its own."""

    def __init__(self, python: str) -> None:
        self._child = subprocess.Popen(  # noqa: S603  our own words
            [python, "-c", PEER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(
        self, root: Path, out: Path | None = None, gone: Sequence[int] = ()
    ) -> dict[str, float]:
        """Let it open a dataset, and delete episodes if any are named."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps([str(root), str(out), list(gone)]) + "\n")
        self._child.stdin.flush()
        answer: dict[str, Any] = json.loads(self._child.stdout.readline())
        return answer


def record(root: Path, n_frames: int, size: int) -> None:
    """Record episodes of a bright square that wanders over a shaded ground."""
    features = {
        "observation.state": {"dtype": "float32", "shape": [14], "names": None},
        "action": {"dtype": "float32", "shape": [14], "names": None},
        CAMERA: {
            "dtype": "video",
            "shape": [size, size, 3],
            "names": ["height", "width", "channels"],
        },
    }
    ramp = np.linspace(0, 120, size)
    ground = np.stack([ramp[:, None] + ramp[None, :] * c for c in (0.2, 0.5, 1.0)], -1)
    ground = ground.astype(np.uint8)
    with DatasetWriter.create(root, 30, features) as writer:
        for episode in range(RECORDED):
            numbers = np.random.default_rng(episode)
            for i in range(n_frames):
                picture = ground.copy()
                at = (i * 3 + episode * 17) % (size * 3 // 4)
                picture[at : at + size // 4, at // 2 : at // 2 + size // 4] = 200
                writer.add_frame(
                    {
                        "observation.state": numbers.normal(size=14).astype(np.float32),
                        "action": numbers.normal(size=14).astype(np.float32),
                        CAMERA: picture,
                    },
                    f"task {episode % 3}",
                )
            writer.end_episode()


def make(folder: Path, options: dict[str, str]) -> Path:
    """Make the dataset that is edited."""
    record(folder / "recorded", int(options["frames"]), int(options["size"]))
    n_copies = max(2, int(options["episodes"]) // RECORDED)
    copies = [open_source(folder / "recorded") for _ in range(n_copies)]
    return build(operations.merge(copies), new_folder(folder / "demos")).root


def packets(root: Path) -> list[list[bytes]]:
    """Return the packets of every episode."""
    source = open_source(root)
    files: dict[Path, list[bytes]] = {}
    found = []
    for row in source.rows:
        span = row.videos[CAMERA]
        path = root / f"videos/{CAMERA}/chunk-{span.chunk:03d}/file-{span.file:03d}.mp4"
        if path not in files:
            with av.open(str(path)) as video:
                files[path] = [bytes(packet) for packet in video.demux(video=0) if packet.size]
        start = round(span.from_s * source.info.fps)
        found.append(files[path][start : start + row.length])
    return found


def measure(root: Path, options: dict[str, str]) -> None:
    n = len(open_source(root).rows)
    gone = [episode for episode in range(n) if episode % 5 in (1, 3)]
    out = root.with_name("fewer")
    times = []
    for _ in range(3):
        shutil.rmtree(out, ignore_errors=True)
        begin, cpu = time.perf_counter(), time.process_time()
        edit(root, new_folder(out), lambda source: operations.delete(source, gone))
        times.append((time.perf_counter() - begin, time.process_time() - cpu))
    for wall, cpu in times:
        print(f"delete {len(gone)} of {n}: {wall:.2f} s ({cpu:.2f} s of a core)")
    before = packets(root)
    kept = [before[episode] for episode in range(n) if episode not in set(gone)]
    print(f"packets of kept episodes identical: {packets(out) == kept}")
    copy = shutil.copytree(root, root.with_name("copy"))
    words = ["data", "delete", str(copy), "--in_place", f"--episodes={','.join(map(str, gone))}"]
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "proctor.cli", *words], check=True)  # noqa: S603  our own words
    print(f"as a command, in place, start included: {time.perf_counter() - begin:.2f} s")
    if options["peer"]:
        peer = Peer(options["peer"])
        took_s = peer.ask(root, root.with_name("fewer-peer"), gone)["seconds"]
        ours = min(wall for wall, _ in times)
        print(f"LeRobot: {took_s:.1f} s, {took_s / ours:.0f} times as long")
        print(f"LeRobot opens ours: {peer.ask(out)['frames']} frames")


def kill(root: Path, options: dict[str, str]) -> None:
    """Kill edits in place at random moments; every time the dataset must be one of the two."""
    n, frames = len(open_source(root).rows), int(options["frames"])
    copy = Path(shutil.copytree(root, root.with_name("killed")))
    words = ["data", "delete", str(copy), "--episodes=0", "--in_place"]
    peer = Peer(options["peer"]) if options["peer"] else None
    moments = random.Random(0)  # noqa: S311  moments to kill at
    outcomes = {"old": 0, "new": 0}
    begin = time.perf_counter()
    edit(copy, new_folder(root.with_name("whole")), lambda source: operations.delete(source, [0]))
    whole_s = time.perf_counter() - begin
    while sum(outcomes.values()) < int(options["kills"]):
        if len(open_source(copy).rows) < n:
            shutil.rmtree(copy)
            shutil.copytree(root, copy)
        child = subprocess.Popen(  # noqa: S603  our own words
            [sys.executable, "-m", "proctor.cli", *words], stdout=subprocess.DEVNULL
        )
        while child.poll() is None and not list(copy.parent.glob(f".killed.edited-{child.pid}")):
            time.sleep(0.001)  # until it has begun
        time.sleep(moments.uniform(0.0, 1.5) * whole_s)
        in_time = child.poll() is None
        child.send_signal(signal.SIGKILL)
        child.wait()
        found = open_source(copy)
        assert len(found.rows) in (n, n - 1), len(found.rows)
        assert [len(of_episode) for of_episode in packets(copy)] == [frames] * len(found.rows)
        assert found.info.total_frames == frames * len(found.rows)
        assert peer is None or peer.ask(copy)["frames"] == found.info.total_frames
        outcomes["old" if len(found.rows) == n else "new"] += in_time
    by = "us and LeRobot" if peer else "us"
    print(f"killed {options['kills']} times in the middle: {outcomes} was there")
    print(f"no episode lost, opened by {by} each time")


def main() -> None:
    options = OPTIONS | dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
    if unknown := options.keys() - OPTIONS.keys():
        sys.exit(f"unknown: {unknown}")
    print(f"{platform.machine()}, {usable_cores()} cores, commit {git_commit()}")
    with tempfile.TemporaryDirectory() as folder:
        root = make(Path(folder), options)
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        print(f"{options['episodes']} episodes of {options['frames']} frames, {size / 1e6:.1f} MB")
        (kill if int(options["kills"]) else measure)(root, options)


if __name__ == "__main__":
    main()
