"""SIGKILL `proctor train` at random moments and resume it; used by ``kills.py``.

A small ACT (VAE, dropout, averaged weights) on numbers. Every file of the last checkpoint must have
the bytes of an undisturbed training, except train_config.json, which names its folder.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from measurements.command import PROCTOR, say
from proctor.datasets.writer import DatasetWriter
from proctor.system.files import sha256_of

SIZES = {"observation.state": 3, "observation.environment_state": 4, "action": 2}
FLAGS = [
    "--policy.type=act",
    "--policy.chunk_size=8",
    "--policy.n_action_steps=8",
    "--policy.dim_model=32",
    "--policy.n_heads=2",
    "--policy.dim_feedforward=64",
    "--policy.device=cpu",
    "--ema.enable=true",
    "--batch_size=8",
    "--save_freq=5",
    "--keep_last=2",
]


def write_dataset(root: Path) -> None:
    features = {k: {"dtype": "float32", "shape": [n], "names": None} for k, n in SIZES.items()}
    writer = DatasetWriter.create(root, fps=10, features=features)
    draws = np.random.default_rng(0)
    for length in (40, 55, 47):
        for _ in range(length):
            frame = {k: draws.normal(size=n).astype(np.float32) for k, n in SIZES.items()}
            writer.add_frame(frame, "a task")
        writer.end_episode()
    writer.close()


def start(words: list[str]) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    command = [*PROCTOR, "train", *words]
    return subprocess.Popen(command, stdout=quiet, stderr=quiet)  # noqa: S603


def files_of(folder: Path) -> dict[str, str]:
    found = [p for p in (folder / "checkpoints/last/").rglob("*") if p.is_file()]
    names = {str(p.relative_to(folder / "checkpoints/last")): p for p in sorted(found)}
    return {k: sha256_of(p) for k, p in names.items() if p.name != "train_config.json"}


def disturbed(begin: list[str], folder: Path, moments: random.Random, lasted: float) -> int:
    """Train to the end with kills at random moments; return how many."""
    words, kills = [*begin, f"--output_dir={folder}"], 0
    while True:
        process = start(words)
        try:
            code = process.wait(moments.uniform(0.0, lasted))
            assert code == 0, code
            return kills
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
        if (folder / "train.json").exists():
            words = ["--resume", f"--output_dir={folder}"]


def kill_train(at_least: int, seed: int, steps: int) -> bool:
    """Kill trainings at least ``at_least`` times; return whether all ended with the same bytes."""
    moments = random.Random(seed)  # noqa: S311  repeatable, not secret
    with tempfile.TemporaryDirectory() as scratch:
        root, whole = (Path(scratch) / name for name in ("data", "whole"))
        write_dataset(root)
        begin = [f"--dataset.root={root}", "--dataset.repo_id=a/b", *FLAGS, f"--steps={steps}"]
        began = time.monotonic()
        assert start([*begin, f"--output_dir={whole}"]).wait() == 0
        lasted = time.monotonic() - began
        expected, kills, runs = files_of(whole), 0, 0
        while kills < at_least:
            runs += 1
            folder = Path(scratch) / f"killed-{runs}"
            times = disturbed(begin, folder, moments, lasted)
            kills += times
            same = files_of(folder) == expected
            print(
                f"training {runs}: {times} kills, {len(expected)} files, same: {same}", flush=True
            )
            if not same:
                return False
    say(f"trainings with identical last checkpoints after {kills} kills", str(runs))
    return True
