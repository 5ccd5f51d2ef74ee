"""Success rate against training step: one curve for the checkpoints of a training."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.fingerprint import flatten
from proctor.report.run.curve_points import curve_points
from proctor.report.run.run import Run
from proctor.runs.training import CHECKPOINTS

_STEP = re.compile(r"\d{1,12}")


@dataclass(frozen=True)
class TrainedCheckpoint:
    """A checkpoint of a training: the training's folder, and the step."""

    training: Path
    step: int


def checkpoint_of(run: Run) -> TrainedCheckpoint | None:
    """Return the checkpoint that a run evaluated; None if it is none of a training.

    Its path tells: ``TRAINING/checkpoints/STEP/pretrained_model``.
    """
    recorded = run.record.paths.get("policy.path")
    policy = run.record.resolved.get("policy")
    typed = policy.get("path") if isinstance(policy, dict) else None
    text = typed if recorded is None else recorded.absolute
    if not isinstance(text, str):
        return None
    parts = Path(text).parts
    for place in range(len(parts) - 1, 0, -1):
        if parts[place - 1] == CHECKPOINTS and _STEP.fullmatch(parts[place]):
            return TrainedCheckpoint(Path(*parts[: place - 1]), int(parts[place]))
    return None


def step_curves(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a curve for every training with evaluated checkpoints of several steps.

    Runs of one step, such as several seeds, are one point.
    """
    curves: dict[str, dict[int, list[Run]]] = {}
    trainings: dict[str, Path] = {}
    for run in runs:
        checkpoint = checkpoint_of(run)
        if checkpoint is None:
            continue
        protocol = run.record.protocol
        fields = flatten({name: protocol.get(name) or {} for name in ("benchmark", "eval")})
        defined = {name: value for name, value in fields.items() if value is not None}
        key = json.dumps([str(checkpoint.training), defined], sort_keys=True)
        trainings[key] = checkpoint.training
        curves.setdefault(key, {}).setdefault(checkpoint.step, []).append(run)
    found = []
    for key, by_step in curves.items():
        if len(by_step) > 1:
            steps = sorted(by_step)
            points, left_out = curve_points([by_step[step] for step in steps])
            points = [{"step": step, **point} for step, point in zip(steps, points, strict=True)]
            name = trainings[key].name or "training"
            found.append({"name": name, "points": points, "left_out": left_out})
    return found
