"""Batches of a training alone: loader processes and the RAM cache, or the dataset on the device.

    python -m measurements batches [--device=cuda] [--loaders=2] [--episodes=20] [--length=100]
        [--side=192] [--batch=256] [--seconds=10] [--rounds=3]

The inputs are those of ``language_act`` with a crop of two thirds, random shifts and several
wordings, on images stored as PNG. Both sides make the same batches of the same steps, by turns, and
nothing is trained. ``filled`` is the time of decoding, with ``device`` also of copying to it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from measurements.command import make_parser, run_parts, say
from measurements.dataset_samples import CAMERA, NUMBERS
from proctor.config.builder import build
from proctor.config.training import TrainConfig
from proctor.datasets.writer import DatasetWriter

TASKS = ("open a drawer", "push a button", "close the door", "pick up the cup")
LEFT_OUT = 4
"""First batches, which are not timed."""


def write_images(root: Path, asked: argparse.Namespace) -> None:
    """Write episodes of noise and gradients as PNG images."""
    side, random = asked.side, np.random.default_rng(0)
    picture = {"dtype": "image", "shape": [side, side, 3], "names": ["height", "width", "channels"]}
    writer = DatasetWriter.create(root, 30, {**NUMBERS, CAMERA: picture})
    grain = random.integers(0, 256, (2 * side, side, 3), dtype=np.uint8)
    for episode in range(asked.episodes):
        for step in range(asked.length):
            numbers = {
                key: random.normal(size=entry["shape"]).astype(np.float32)
                for key, entry in NUMBERS.items()
            }
            image = grain[step % side : step % side + side]
            writer.add_frame({**numbers, CAMERA: image}, task=TASKS[episode % len(TASKS)])
        writer.end_episode()
    writer.close()


def measure(root: Path, cache: str, asked: argparse.Namespace) -> tuple[float, float, float]:
    """Return the seconds of decoding and of the start, and samples per second."""
    import torch

    from proctor.training.setup import prepare

    edge, crop = asked.side // 6, asked.side * 2 // 3
    config = build(
        TrainConfig,
        {
            "policy.type": "language_act",
            "policy.device": asked.device,
            "policy.push_to_hub": False,
            "policy.crop": [edge, edge, crop, crop],
            "policy.random_shift": 4,
            "policy.pretrained_backbone_weights": None,
            "dataset.repo_id": "someone/made",
            "dataset.root": str(root),
            "dataset.inputs": [CAMERA, "observation.state"],
            "dataset.balance_tasks": True,
            "dataset.paraphrase_tasks": True,
            "dataset.cache": cache,
            "batch_size": asked.batch,
            "num_workers": asked.loaders,
            "dataloader_multiprocessing_context": "forkserver",
            "steps": 10**9,
            "output_dir": str(root / "never"),
        },
    )
    setup = prepare(config)
    began = time.perf_counter()
    setup.fill_caches(lambda *_: None)
    decoded = time.perf_counter()
    feed = setup.batches(range(10**9))
    next(feed)
    started = time.perf_counter()
    for _ in range(LEFT_OUT - 1):
        next(feed)
    from_s, rows = time.perf_counter(), 0
    while time.perf_counter() - from_s < asked.seconds:
        rows += len(next(feed)["action"])
        if setup.device.type == "cuda":
            torch.cuda.synchronize()
    speed = rows / (time.perf_counter() - from_s)
    feed.close()
    setup.close()
    return decoded - began, started - began, speed


def batches(folder: Path, asked: argparse.Namespace) -> None:
    """Print samples per second of both sides, and their ratio."""
    root = folder / "images"
    write_images(root, asked)
    found: dict[str, list[tuple[float, float, float]]] = {"ram": [], "device": []}
    for _ in range(asked.rounds):
        for cache, runs in found.items():
            runs.append(measure(root, cache, asked))
    for cache, runs in found.items():
        decoding, start, speed = (median(column) for column in zip(*runs, strict=True))
        say(f"cache={cache}: samples/s", f"{speed:,.0f}")
        say(f"cache={cache}: filled, first batch", f"{decoding:.2f}, {start:.2f} s")
    ratios = [d[2] / r[2] for d, r in zip(found["device"], found["ram"], strict=True)]
    say("device / ram", f"{median(ratios):.1f}x")


def main(words: Sequence[str]) -> None:
    """Measure batches on one device."""
    parser = make_parser("batches", __doc__)
    parser.add_argument("--device", default="cpu")
    for name, usual in (("episodes", 20), ("length", 100), ("side", 192), ("batch", 256)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--loaders", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    asked = parser.parse_args(words)
    if asked.tiny:
        asked.episodes, asked.length, asked.side, asked.batch = 4, 6, 48, 5
        asked.rounds, asked.seconds, asked.loaders = 1, 0.2, 1
    run_parts([], {"batches": lambda folder: batches(folder, asked)})
