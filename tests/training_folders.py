"""Hand-written training folders as `proctor train` leaves them; torch is not needed."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.run_folders import eight_episodes, write_run

TINY_VIDEO = Path(__file__).parent / "browser" / "tiny.mp4"
RECORD: dict[str, Any] = {
    "given": {"dataset.repo_id": "me/demos", "policy.type": "act", "steps": "400"},
    "resolved": {
        "steps": 400,
        "batch_size": 8,
        "policy": {"type": "act"},
        "dataset": {"repo_id": "me/demos", "root": None},
    },
    "sessions": [1_700_000_000.0],
    "versions": {"torch": "2.9"},
    "machine": {"usable_cores": 2},
    "format": 1,
}


def reading(step: int, *, steps: int = 10, **other: Any) -> dict[str, Any]:
    """Return a line of the log: a falling loss, a schedule that warms up and decays."""
    loss = 4 * math.exp(-step / 90) + 0.05 + 0.02 * math.sin(step)
    return {
        "kind": "train",
        "step": step,
        "steps": steps,
        "loss": loss,
        "grad_norm": 3 * loss,
        "lr": 1e-4 * min(step / 50, 0.5 + 0.5 * math.cos(step / 130)),
        "samples_per_s": 400.0,
        "step_s": 0.02,
        "waiting": 0.1,
        "memory_gb": 0.5,
        "parts": {"l1_loss": loss * 0.8},
    } | other


def played(step: int, percent: float, low: float, high: float) -> dict[str, Any]:
    interval = [low, high]
    return {"kind": "evaluation", "step": step, "pc_success": percent, "interval": interval} | {
        "episodes": 8,
        "problem": None,
    }


def a_log() -> list[dict[str, Any]]:
    """Return a log of 400 steps, two validation losses and three evaluations, one failed."""
    lines: list[dict[str, Any]] = [reading(step) for step in range(10, 401, 10)]
    lines += [{"kind": "held_out", "step": step, "loss": 300 / step} for step in (100, 200, 400)]
    lines += [played(200, 87.5, 52.9, 97.8) | {"errors": 1}, played(400, 62.5, 30.6, 86.3)]
    broken = {"kind": "evaluation", "step": 300, "pc_success": None, "interval": None}
    lines.append(broken | {"episodes": 0, "problem": "exit code 1, <b>no</b> display here"})
    return lines


def write_training(
    folder: Path, lines: Sequence[dict[str, Any]] | None = None, record: dict[str, Any] = RECORD
) -> Path:
    """Write a training with two checkpoints and the runs of their evaluations."""
    for step in (200, 400):
        (folder / "checkpoints" / f"{step:06d}").mkdir(parents=True)
        write_run(folder / "eval" / f"{step:06d}", eight_episodes())
    (folder / "checkpoints" / "last").symlink_to("000400")
    (folder / "checkpoints" / "best").symlink_to("000200")
    video = folder / "eval/000400" / eight_episodes()[0].video
    video.parent.mkdir(parents=True)
    shutil.copy(TINY_VIDEO, video)
    (folder / "train.json").write_text(json.dumps(record))
    text = "".join(json.dumps(line) + "\n" for line in (a_log() if lines is None else lines))
    (folder / "log.jsonl").write_text(text)
    return folder
