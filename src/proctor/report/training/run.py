"""A training as its folder has it, for the Python API."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.report.training.data import read_training_folder
from proctor.runs.training import CHECKPOINTS, EvaluationLogRow, TrainingRecord
from proctor.system.locks import is_locked

_WEIGHTS, _AVERAGED = "pretrained_model", "pretrained_model_ema"


@dataclass(frozen=True)
class Training:
    """A training folder, finished or not."""

    path: Path
    step: int
    """The newest step in the log or of a checkpoint."""
    planned: int | None
    """Number of planned steps."""
    losses: dict[int, float]
    """The training loss by step: a mean over the steps since the previous one."""
    validation_losses: dict[int, float]
    """The loss on validation episodes by step."""
    checkpoints: dict[int, Path]
    """The folder of each checkpoint by step."""
    evaluations: list[EvaluationLogRow]
    """The evaluations of its checkpoints, in the order of their steps."""
    best_checkpoint: Path | None
    """The checkpoint with the highest success rate, or the lowest validation loss."""
    record: TrainingRecord = field(kw_only=True)
    """The content of ``train.json``: settings, versions, machine."""
    running: bool = field(default=False, kw_only=True)
    """Whether a process was working on the training when it was loaded."""

    @property
    def complete(self) -> bool:
        """Whether all planned steps are done."""
        return self.planned is not None and self.step >= self.planned

    @property
    def config(self) -> dict[str, Any]:
        """All settings, as resolved."""
        return self.record.resolved

    @property
    def policy(self) -> Path | None:
        """The policy of the newest checkpoint, for ``evaluate``; None: there is no checkpoint."""
        if not self.checkpoints:
            return None
        return self.checkpoints[max(self.checkpoints)] / _WEIGHTS

    @property
    def best_policy(self) -> Path | None:
        """The policy of the best checkpoint, with the weights that were evaluated."""
        if self.best_checkpoint is None:
            return None
        averaged = self.best_checkpoint / _AVERAGED
        is_averaged = self.record.plays_averages and averaged.is_dir()
        return averaged if is_averaged else self.best_checkpoint / _WEIGHTS

    def __str__(self) -> str:
        planned = "" if self.planned is None else f"/{self.planned:,}"
        parts = [f"step {self.step:,}{planned}"]
        if self.losses:
            parts.append(f"loss {self.losses[max(self.losses)]:.4g}")
        if self.best_checkpoint is not None:
            parts.append(f"best at step {int(self.best_checkpoint.name):,}")
        n = len(self.checkpoints)
        parts.append(f"{n} checkpoint{'s' * (n != 1)}")
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"Training({self}, path={str(self.path)!r})"


def load_training(folder: str | Path) -> Training:
    """Read a training folder, of a finished, interrupted or active training.

    Args:
        folder: the folder of the training (``--output_dir``).
    """
    path = Path(folder).expanduser()
    running = is_locked(path)  # before the log: a training that ends meanwhile is complete there
    content = read_training_folder(path)
    places = {
        step: path / CHECKPOINTS / name
        for name, step in content.checkpoints.items()
        if name.isdecimal()
    }
    best = content.checkpoints.get("best")
    return Training(
        path=path,
        step=content.step,
        planned=content.planned,
        losses={row.step: row.loss for row in content.training_rows},
        validation_losses={row.step: row.loss for row in content.validation_rows},
        checkpoints=dict(sorted(places.items())),
        evaluations=content.evaluations,
        best_checkpoint=None if best is None else places.get(best),
        record=content.record,
        running=running,
    )
