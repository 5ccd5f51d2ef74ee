"""Training beside LeRobot: samples a second, data included, and the share of time without data.

    python -m measurements.training_speed [numbers video] [gpu gpu-bf16] [--rounds=3] [--steps=60]
        [--batches=8,64] [--data=DIR]

LeRobot is where PROCTOR_PEER_VENV says (`measurements/peers/install.py`). Both learn by turns from
the same files with the same flags, as users would start them. On a CPU with one compute thread
each, the other cores are for loaders: LeRobot reads without loader processes and with its default
of four; its best counts. ``gpu`` and ``gpu-bf16`` have to be named and want a CUDA device: ACT as
large as LeRobot makes it, in float32 (TF32 in products) or bfloat16, twelve loaders each, with
``--batches`` and from ``--data`` if there is a dataset already. What is told of the first quarter
of a run is left out. The table is Markdown, for docs/training.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from measurements.beside import measure_parts
from measurements.command import PROCTOR
from measurements.datasets_made import write_numbers, write_video
from measurements.peers.install import peer_python

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
"""How LeRobot 0.6.1 is told; ours is a flag."""
SAID = re.compile(r"step:\S+ .*?updt_s:([\d.]+).*?data_s:([\d.]+)")
"""LeRobot 0.6.1's line: seconds of a step's update, and before it of its data."""


@dataclass(frozen=True)
class Sped:
    """What a training's log says of its last three quarters."""

    samples_per_s: float
    waiting: float
    """Share of the time in which there was no batch to compute with."""


@dataclass(frozen=True)
class Case:
    """One training, and how each side may read its data."""

    name: str
    root: Path
    batch: int
    steps: int
    theirs: Sequence[dict[str, object]]
    ours: dict[str, dict[str, object]]
    """By what the row is called."""
    network: Mapping[str, object] = field(default_factory=lambda: SMALL)
    environment: Mapping[str, str] = field(default_factory=lambda: ONE_THREAD)

    def flags(self, output: Path, reading: dict[str, object]) -> list[str]:
        """Return the words of either command."""
        told: dict[str, object] = {
            **self.network, "dataset.repo_id": "someone/made", "dataset.root": self.root,
            "batch_size": self.batch, "steps": self.steps, "log_freq": max(1, self.steps // 12),
            "output_dir": output, **reading,
        }  # fmt: skip
        return [f"--{name}={value}" for name, value in told.items()]


def ours(case: Case, output: Path, reading: dict[str, object]) -> Sped:
    _run([*PROCTOR, "train", *case.flags(output, reading)], case.environment)
    lines = [json.loads(line) for line in (output / "log.jsonl").open()]
    later = [line for line in lines if line["step"] > case.steps / 4]
    seconds = sum(line["step_s"] * line["steps"] for line in later)
    samples = sum(line["samples_per_s"] * line["step_s"] * line["steps"] for line in later)
    waited = sum(line["waiting"] * line["step_s"] * line["steps"] for line in later)
    return Sped(samples / seconds, waited / seconds)


def theirs(case: Case, output: Path, reading: dict[str, object]) -> Sped:
    command = [peer_python(), "-I", "-m", "lerobot.scripts.lerobot_train"]
    said = _run([*command, *case.flags(output, reading)], case.environment)
    found = [(float(update), float(data)) for update, data in SAID.findall(said)]
    if not found:
        raise SystemExit(f"LeRobot's log says nothing of its speed:\n{said[-2000:]}")
    later = found[len(found) // 4 :]
    seconds, waited = sum(update + data for update, data in later), sum(data for _, data in later)
    return Sped(case.batch * len(later) / seconds, waited / seconds)


def _run(command: Sequence[str | Path], environment: Mapping[str, str]) -> str:
    told = {**os.environ, **ENVIRONMENT, **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=told)  # noqa: S603  our own
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout + done.stderr


def measure(case: Case, folder: Path, rounds: int) -> None:
    """Train by turns, and print a row for each of our ways to read."""
    their: list[Sped] = []
    our: dict[str, list[Sped]] = {name: [] for name in case.ours}
    for turn in range(rounds):
        runs = folder / f"{case.name} {turn}"
        tried = [theirs(case, runs / f"theirs{i}", r) for i, r in enumerate(case.theirs)]
        their.append(max(tried, key=lambda sped: sped.samples_per_s))
        for name, reading in case.ours.items():
            our[name].append(ours(case, runs / name, reading))
    for name, found in our.items():
        rates = [sorted(s.samples_per_s for s in side) for side in (their, found)]
        waits = [max(s.waiting for s in side) for side in (their, found)]
        ratio = median(o.samples_per_s / t.samples_per_s for o, t in zip(found, their, strict=True))
        cells = [
            f"{case.name}, {name}",
            *(f"{side[0]:,.1f} to {side[-1]:,.1f}/s" for side in rates),
            f"**{ratio:.1f}x**",
            *(f"{wait:.1%}" for wait in waits),
            ">= 1.5x, waiting <= 2%",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def numbers(folder: Path, rounds: int, steps: int) -> None:
    root = folder / "numbers"
    write_numbers(root, episodes=100, length=100)
    plain: dict[str, object] = {"num_workers": 0}
    four: dict[str, object] = {"num_workers": 4}
    case = Case("ACT on numbers", root, 64, steps * 4, [plain, four], {"no processes": plain})
    measure(case, folder, rounds)


def video(folder: Path, rounds: int, steps: int) -> None:
    root = folder / "video"
    write_video(root, episodes=6, length=50, size=480)
    plain: dict[str, object] = {"num_workers": 0}
    four: dict[str, object] = {"num_workers": 4}
    inputs: dict[str, object] = {"dataset.cache_dir": folder / "cache"}
    our = {
        "1 loader process": {"num_workers": 1},
        "4 loader processes": four,
        "cache=ram": plain | {"dataset.cache": "ram"},
        "cache=disk": plain | inputs | {"dataset.cache": "disk"},
    }
    measure(Case("ACT on 480x480 video", root, 8, steps, [plain, four], our), folder, rounds)


def gpu(folder: Path, rounds: int, steps: int, asked: Mapping[str, str], *, bf16: bool) -> None:
    root = Path(asked.get("data", folder / "video")).absolute()
    if not root.exists():
        write_video(root, episodes=10, length=100, size=480)
    same: dict[str, object] = {"num_workers": 12}
    flags: dict[str, object] = {"accelerator.mixed_precision": "bf16"} if bf16 else {}
    our = {"12 loader processes": same | flags}
    network, environment = {**ACT, "policy.device": "cuda"}, BF16 if bf16 else {}
    for batch in map(int, asked.get("batches", "8,64").split(",")):
        what = f"ACT on 480x480 video, {'bfloat16' if bf16 else 'float32'}, batch {batch}"
        case = Case(what, root, batch, steps, [same], our, network, environment)
        measure(case, folder, rounds)


ON_A_CPU: dict[str, Callable[..., None]] = {"numbers": numbers, "video": video}


def main(words: list[str]) -> None:
    asked = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    rounds, steps = int(asked.get("rounds", 3)), int(asked.get("steps", 60))
    on_a_gpu = {
        "gpu": partial(gpu, asked=asked, bf16=False),
        "gpu-bf16": partial(gpu, asked=asked, bf16=True),
    }
    parts = {
        name: partial(part, rounds=rounds, steps=steps)
        for name, part in (ON_A_CPU | on_a_gpu).items()
    }
    named = [word for word in words if not word.startswith("--")]
    measure_parts(named or list(ON_A_CPU), parts, HEAD)


if __name__ == "__main__":
    main(sys.argv[1:])
