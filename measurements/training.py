"""Training speed compared with LeRobot: samples per second, data loading included.

    python -m measurements training [numbers video gpu gpu-bf16] [--ours] [--rounds=3] [--steps=60]
        [--batches=8,64] [--data=DIR]

LeRobot is in PROCTOR_PEER_VENV (`make bench-peers` installs it); ``--ours`` measures Proctor alone.
Both train by turns on the same files with the same flags. On a CPU each has one compute thread and
the other cores are for loaders: LeRobot reads with 0 and with 4 loader processes, its best counts.
``gpu`` and ``gpu-bf16`` run only if they are named and need CUDA: ACT of LeRobot's size, in float32
(TF32) or bfloat16, 12 loaders each, with ``--batches``, on ``--data`` if it exists. The first
quarter of each run is left out. The table is Markdown, for docs/measurements.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from measurements.command import PROCTOR, Part, make_parser, run_parts
from measurements.dataset_samples import write_numbers, write_video
from measurements.peers.install import peer_python, require_lerobot

COLUMNS = ("", "LeRobot", "Proctor", "ratio", "waiting: LeRobot", "Proctor", "target")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
ACT = {
    "policy.type": "act", "policy.push_to_hub": "false",
    "policy.pretrained_backbone_weights": "null", "save_checkpoint": "false",
}  # fmt: skip
SMALL = {
    **ACT, "policy.device": "cpu", "policy.chunk_size": 10, "policy.n_action_steps": 10,
    "policy.dim_model": 128, "policy.dim_feedforward": 256, "policy.n_heads": 4,
    "policy.n_encoder_layers": 2, "policy.use_vae": "false", "optimizer.lr": "1e-4",
}  # fmt: skip
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
BF16 = {"ACCELERATE_MIXED_PRECISION": "bf16"}
"""LeRobot 0.6.1 has no flag for bfloat16; Proctor has."""
LOG_LINE = re.compile(r"step:\S+ .*?updt_s:([\d.]+).*?data_s:([\d.]+)")
"""Pattern of LeRobot 0.6.1's log line: seconds of a step's update and of its data."""


@dataclass(frozen=True)
class Speed:
    """The speed in the last three quarters of a training."""

    samples_per_s: float
    waiting: float
    """Share of the time in which no batch was ready."""


@dataclass(frozen=True)
class Case:
    """One training, and the loader settings of each side."""

    name: str
    root: Path
    batch: int
    steps: int
    theirs: Sequence[dict[str, object]]
    ours: dict[str, dict[str, object]]
    """Our loader settings, by the row's name."""
    network: Mapping[str, object] = field(default_factory=lambda: SMALL)
    environment: Mapping[str, str] = field(default_factory=lambda: ONE_THREAD)

    def flags(self, output: Path, reading: dict[str, object]) -> list[str]:
        """Return the flags of either command."""
        told: dict[str, object] = {
            **self.network, "dataset.repo_id": "someone/made", "dataset.root": self.root,
            "batch_size": self.batch, "steps": self.steps, "log_freq": max(1, self.steps // 12),
            "output_dir": output, **reading,
        }  # fmt: skip
        return [f"--{name}={value}" for name, value in told.items()]


def ours(case: Case, output: Path, reading: dict[str, object]) -> Speed:
    _run([*PROCTOR, "train", *case.flags(output, reading)], case.environment)
    lines = [json.loads(line) for line in (output / "log.jsonl").open()]
    later = [line for line in lines if line["step"] > case.steps / 4]
    seconds = sum(line["step_s"] * line["steps"] for line in later)
    samples = sum(line["samples_per_s"] * line["step_s"] * line["steps"] for line in later)
    waited = sum(line["waiting"] * line["step_s"] * line["steps"] for line in later)
    return Speed(samples / seconds, waited / seconds)


def theirs(case: Case, output: Path, reading: dict[str, object]) -> Speed:
    command = [str(peer_python()), "-I", "-m", "lerobot.scripts.lerobot_train"]
    said = _run([*command, *case.flags(output, reading)], case.environment)
    found = [(float(update), float(data)) for update, data in LOG_LINE.findall(said)]
    if not found:
        raise SystemExit(f"LeRobot's log has no speed:\n{said[-2000:]}")
    later = found[len(found) // 4 :]
    seconds, waited = sum(update + data for update, data in later), sum(data for _, data in later)
    return Speed(case.batch * len(later) / seconds, waited / seconds)


def _run(command: Sequence[str | Path], environment: Mapping[str, str]) -> str:
    told = {**os.environ, **ENVIRONMENT, **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=told)  # noqa: S603  our own
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout + done.stderr


def measure(case: Case, folder: Path, asked: argparse.Namespace) -> None:
    """Train by turns, and print a row for each of our loader settings."""
    their: list[Speed] = []
    our: dict[str, list[Speed]] = {name: [] for name in case.ours}
    for turn in range(asked.rounds):
        runs = folder / f"{case.name} {turn}"
        if not asked.ours:
            tried = [theirs(case, runs / f"theirs{i}", r) for i, r in enumerate(case.theirs)]
            their.append(max(tried, key=lambda speed: speed.samples_per_s))
        for name, reading in case.ours.items():
            our[name].append(ours(case, runs / name, reading))
    for name, found in our.items():
        cells = [f"{case.name}, {name}", rates(their), rates(found), "n/a", waits(their)]
        if their:
            pairs = zip(found, their, strict=True)
            cells[3] = f"**{median(o.samples_per_s / t.samples_per_s for o, t in pairs):.1f}x**"
        print(f"| {' | '.join([*cells, waits(found), '>= 1.5x, waiting <= 2%'])} |", flush=True)


def rates(side: Sequence[Speed]) -> str:
    """Return the range of samples per second."""
    found = [speed.samples_per_s for speed in side]
    return f"{min(found):,.1f} to {max(found):,.1f}/s" if found else "n/a"


def waits(side: Sequence[Speed]) -> str:
    """Return the largest share of time without data."""
    return f"{max(speed.waiting for speed in side):.1%}" if side else "n/a"


def numbers(folder: Path, asked: argparse.Namespace) -> None:
    """A small ACT on vectors."""
    root = folder / "numbers"
    write_numbers(root, episodes=4 if asked.tiny else 100, length=20 if asked.tiny else 100)
    plain: dict[str, object] = {"num_workers": 0}
    four: dict[str, object] = {"num_workers": 4}
    steps = asked.steps * 4
    case = Case("ACT on numbers", root, 64, steps, [plain, four], {"no processes": plain})
    measure(case, folder, asked)


def video(folder: Path, asked: argparse.Namespace) -> None:
    """A small ACT on videos, by loader processes and by the frame cache."""
    root, side = folder / "video", 64 if asked.tiny else 480
    write_video(root, episodes=2 if asked.tiny else 6, length=10 if asked.tiny else 50, size=side)
    plain: dict[str, object] = {"num_workers": 0}
    four: dict[str, object] = {"num_workers": 4}
    disk: dict[str, object] = {"dataset.cache": "disk", "dataset.cache_dir": folder / "cache"}
    our: dict[str, dict[str, object]] = {
        "1 loader process": {"num_workers": 1},
        "4 loader processes": four,
        "cache=ram": plain | {"dataset.cache": "ram"},
        "cache=disk": plain | disk,
    }
    name = f"ACT on {side}x{side} video"
    measure(Case(name, root, 8, asked.steps, [plain, four], our), folder, asked)


def gpu(folder: Path, asked: argparse.Namespace, *, bf16: bool) -> None:
    """ACT of LeRobot's size on videos, on a CUDA device."""
    root = (asked.data or folder / "video").absolute()
    if not root.exists():
        write_video(root, episodes=10, length=100, size=480)
    same: dict[str, object] = {"num_workers": 12}
    flags: dict[str, object] = {"accelerator.mixed_precision": "bf16"} if bf16 else {}
    our: dict[str, dict[str, object]] = {"12 loader processes": same | flags}
    network, environment = {**ACT, "policy.device": "cuda"}, BF16 if bf16 else {}
    for batch in map(int, asked.batches.split(",")):
        what = f"ACT on 480x480 video, {'bfloat16' if bf16 else 'float32'}, batch {batch}"
        case = Case(what, root, batch, asked.steps, [same], our, network, environment)
        measure(case, folder, asked)


ON_CPU = ("numbers", "video")


def main(words: Sequence[str]) -> None:
    """Run the named parts, or those for a CPU."""
    parser = make_parser("training", __doc__, (*ON_CPU, "gpu", "gpu-bf16"))
    parser.add_argument("--ours", action="store_true", help="without LeRobot")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batches", default="8,64", help="of gpu and gpu-bf16")
    parser.add_argument("--data", type=Path, help="a dataset for gpu and gpu-bf16")
    asked = parser.parse_args(words)
    if asked.tiny:
        asked.rounds, asked.steps = 1, 4
    if not asked.ours:
        require_lerobot()
    parts: dict[str, Part] = {
        "numbers": partial(numbers, asked=asked),
        "video": partial(video, asked=asked),
        "gpu": partial(gpu, asked=asked, bf16=False),
        "gpu-bf16": partial(gpu, asked=asked, bf16=True),
    }
    run_parts(asked.parts or ON_CPU, parts, HEAD)
