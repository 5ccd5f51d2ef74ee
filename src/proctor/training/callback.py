"""The events of a training, which its session receives."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from proctor.training.metrics.metrics import Metrics
from proctor.training.optim.divergence import Divergence


class TrainingCallback(Protocol):
    """Receives the events of a training."""

    def on_step(self, step: int) -> None:
        """A step is done; metrics may come later."""

    def on_metrics(self, metrics: Metrics) -> None:
        """New metrics are available."""

    def on_validation(self, step: int, loss: float) -> None:
        """The validation loss was computed."""

    def lacks_validation(self, step: int) -> bool:
        """Return whether the validation loss of this step was never computed."""

    def on_checkpoint(self, step: int, checkpoint: Path) -> None:
        """A checkpoint was written completely."""

    def on_divergence(self, divergence: Divergence, good: Path | None) -> Path:
        """The training diverged; ``good`` is the checkpoint to go on from.

        Returns the file with its last steps.
        """

    def on_rise(self, divergence: Divergence, good: Path | None, advice: str) -> None:
        """Loss and gradients rose; the training goes on.

        ``good`` is the checkpoint from before, ``advice`` has the command that continues it.
        """
