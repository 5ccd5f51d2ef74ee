"""SIGKILL `proctor record` at random moments and resume it; used by ``kills.py``.

Recordings of the fake benchmark with images and noise are killed and resumed until they are
complete. After every kill the dataset is opened and frames are read. The final dataset must equal
that of an undisturbed recording. An episode that is in the journal twice was lost once.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from measurements.command import PROCTOR, say
from proctor.datasets.reader import open as open_dataset
from proctor.datasets.reading.dataset import Dataset
from proctor.features import Array

FLAGS = (
    *("--policy.type=expert", "--env.type=fake", "--env.n_tasks=2", "--env.episode_length=14"),
    *("--env.image_size=64", "--env.step_ms=10", "--eval.batch_size=2"),
    *("--record.n_episodes=12", "--record.noise=0.3"),
)
LONGEST_S = 1.5
"""Latest kill, after the first episode of a session has ended."""


def start(root: Path, *words: str) -> subprocess.Popen[str]:
    command = [*PROCTOR, "record", f"--dataset.root={root}", *words]
    return subprocess.Popen(  # noqa: S603  our own command
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def ended_well(process: subprocess.Popen[str]) -> None:
    said = process.communicate()[1]
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode}: {said}")


def journal_lines(root: Path) -> list[bytes]:
    path = root.with_name(f"{root.name}.recording") / "episodes.jsonl"
    return path.read_bytes().splitlines() if path.exists() else []


def killed(root: Path, rng: random.Random) -> bool:
    """Record or resume, and kill it at a random moment; False if it was complete before."""
    begun = root.with_name(f"{root.name}.recording") / "run.json"
    process = start(root, *(["--resume"] if begun.exists() else FLAGS))
    before = len(journal_lines(root))
    while process.poll() is None and len(journal_lines(root)) <= before:
        time.sleep(0.005)
    time.sleep(rng.random() * LONGEST_S)
    if process.poll() is None:
        process.kill()
        process.communicate()
        return True
    ended_well(process)
    return False


def numbers(dataset: Dataset) -> dict[str, Array]:
    batch = dataset.batch(range(len(dataset)))
    return {key: np.asarray(value) for key, value in batch.items()}


def record_with_kills(root: Path, rng: random.Random) -> int:
    """Record one dataset with kills; return their number."""
    kills = n_episodes = 0
    while killed(root, rng):
        kills += 1
        if not root.exists():
            continue
        dataset = open_dataset(root)
        assert len(dataset.episodes) >= n_episodes, "a finished episode is gone"
        n_episodes = len(dataset.episodes)
        if n_episodes:
            dataset.batch(range(0, len(dataset), 7))
    return kills


def kill_record(at_least: int, seed: int) -> bool:
    """Kill recordings at least ``at_least`` times; return whether nothing was lost."""
    rng = random.Random(seed)  # noqa: S311  repeatable, not secret
    kills = recordings = twice = 0
    with tempfile.TemporaryDirectory() as folder:
        ended_well(start(Path(folder, "whole"), *FLAGS))
        whole = numbers(open_dataset(Path(folder, "whole")))
        attempts = len(journal_lines(Path(folder, "whole")))
        while kills < at_least:
            root = Path(folder, f"d{recordings}")
            kills, recordings = kills + record_with_kills(root, rng), recordings + 1
            found = numbers(open_dataset(root))
            assert all(np.array_equal(found[key], whole[key]) for key in whole), root
            twice += len(journal_lines(root)) - attempts
            assert not list(Path(folder).glob(".*")), "something is left beside the dataset"
    say(f"identical recordings after {kills} kills", str(recordings))
    say("finished episodes lost", str(twice), "0")
    return twice == 0
