"""What the user sees of a training, and what stays of it: live line, log, the best checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from proctor.callbacks.progress import ProgressLine, duration_text
from proctor.errors import WriteFailed
from proctor.report.training_page import write_training_page
from proctor.runs.training import EVALUATIONS, EvaluationLogRow, read_training_log
from proctor.training.checkpoint_evaluation import CheckpointEvaluator
from proctor.training.checkpoints import BEST
from proctor.training.folder import TrainingFolder, reading_line
from proctor.training.loop import Trainer
from proctor.training.metrics import Metrics
from proctor.training.tracking import TrainingLog


class TrainingMonitor:
    """Shows every reading in a line and writes it down; has checkpoints played, keeps the best."""

    def __init__(self, folder: TrainingFolder, trainer: Trainer) -> None:
        self._folder, self._config = folder, trainer.setup.config
        self._first, self._began = trainer.trainer_state.step, time.monotonic()
        self._checkpoints = folder.checkpoints(self._config.steps)
        self._scores = folder.scores(by_rate=self._config.plays)
        self._evaluator = CheckpointEvaluator(self._config, folder.path / EVALUATIONS)
        self._console = Console(stderr=True)
        wanted = self._config.wandb.active
        self._tracking = TrainingLog(trainer.setup, folder.path) if wanted else None
        self._headline(trainer)
        self._line = ProgressLine(self._console)
        nothing = f"step {self._first:,}: nothing is left to train"
        self._text = nothing if trainer.done else "starting"

    def decoded(self, camera: str, frames: int, total: int) -> None:
        """Show how far a cache is filled."""
        self._line.show(f"decoding {camera}: {frames:,}/{total:,} frames")

    def logged(self, reading: Metrics) -> None:
        """Show and write down a reading."""
        self._folder.log(reading_line(reading))
        if self._tracking is not None:
            self._tracking.trained(reading)
        self._text = self.line(reading)
        self._line.show(self._text)
        if self._evaluator.pending:
            self._note(self._evaluator.done())

    def validated(self, step: int, loss: float) -> None:
        """Show and write down a loss on held-out episodes."""
        self._folder.log({"kind": "held_out", "step": step, "loss": loss})
        self._say(f"step {step:,}: held-out loss {loss:.4g}")
        if self._tracking is not None:
            self._tracking.validated(step, loss)
        if not self._config.plays and math.isfinite(loss):
            self._scores[step] = -loss

    def saved(self, step: int, checkpoint: Path) -> None:
        """Have it played where that is due, and remove what is not to be kept."""
        if self._tracking is not None:
            self._tracking.saved(step, checkpoint)
        if self._config.evaluates_after(step):
            self._evaluator.ask(checkpoint)
        self._note(self._evaluator.done())
        self.report()

    def resumed(self) -> None:
        """Have those checkpoints played that an earlier session did not get to.

        An evaluation that ended when nobody was there any more to write it down, is now.
        """
        noted = {
            n.step for n in read_training_log(self._folder.path) if isinstance(n, EvaluationLogRow)
        }
        for checkpoint in self._checkpoints.all():
            step = int(checkpoint.name)
            if self._config.evaluates_after(step):
                found = self._evaluator.played(checkpoint)
                if found is None:
                    self._evaluator.ask(checkpoint)
                elif step not in noted:
                    self._note([found])

    def finish(self) -> None:
        """Wait for the evaluations that are not done."""
        if self._evaluator.pending:
            self._line.close(self._text)
            self._say(f"waiting for {len(self._evaluator.pending)} evaluation(s)")
        self._note(self._evaluator.rest())

    def close(self, *, failed: bool = False) -> None:
        """Leave the last line on the screen, and nothing running."""
        self._evaluator.stop()
        self._line.close(self._text)
        if self._tracking is not None:
            self._tracking.end(failed=failed)

    def report(self) -> Path:
        """Write the page of what is there so far, and return its path."""
        return write_training_page(self._folder.path)

    def _note(self, examined: Iterable[EvaluationLogRow]) -> None:
        for result in examined:
            self._say(str(result))
            self._folder.log({"kind": "evaluation", **asdict(result)})
            if self._tracking is not None:
                self._tracking.examined(result, self._evaluation_of(result.step))
            if result.pc_success is not None:
                self._scores[result.step] = result.pc_success
            self.report()
        self._keep()

    def _evaluation_of(self, step: int) -> Path:
        return self._folder.path / EVALUATIONS / self._checkpoints.path(step).name

    def _keep(self) -> None:
        """Remove the checkpoints that are not to be kept, and name the best of the others.

        Raises:
            NotWritten: the disk is full or gone.
        """
        try:
            self._keep_and_name()
        except OSError as error:
            raise WriteFailed(self._checkpoints.folder, error) from error

    def _keep_and_name(self) -> None:
        if self._config.keep_last is not None:
            best = frozenset(self._ranked()[: self._config.keep_best or 0])
            self._checkpoints.keep(self._config.keep_last, best | self._evaluator.pending)
        ranked = self._ranked()
        if ranked:
            self._checkpoints.name(BEST, self._checkpoints.path(ranked[0]))
        else:
            self._checkpoints.unname(BEST)

    def _ranked(self) -> list[int]:
        """Return the steps that have a score and a checkpoint, the best first."""
        there = {int(path.name) for path in self._checkpoints.all()}
        scored = [step for step in self._scores if step in there]
        return sorted(scored, key=lambda step: (self._scores[step], step), reverse=True)

    def line(self, reading: Metrics) -> str:
        """Return a reading as text, what matters most first: a narrow terminal cuts the end."""
        parts = [
            f"step {reading.step:,}/{self._config.steps:,}",
            f"loss {reading.loss:.4g}",
            f"grad {reading.grad_norm:.3g}",
            self._time_left(reading.step),
            f"{reading.samples_per_s:,.0f} samples/s",
            f"waiting {reading.waiting:.1%}",
            f"{reading.memory_gb:.1f} GB",
            f"lr {reading.lr:.1e}",
            *(f"{name} {value:.4g}" for name, value in reading.parts.items()),
        ]
        return "  ".join(parts)

    def _time_left(self, step: int) -> str:
        elapsed, left = time.monotonic() - self._began, self._config.steps - step
        if left == 0:
            return f"done in {duration_text(elapsed)}"
        return f"{duration_text(elapsed / max(1, step - self._first) * left)} left"

    def _headline(self, trainer: Trainer) -> None:
        setup = trainer.setup
        frames, policy = len(setup.order.frames), setup.parts.config
        millions = sum(p.numel() for p in setup.parts.network.parameters()) / 1e6
        trainer_state = (
            sum(p.numel() for p in setup.parts.network.parameters() if p.requires_grad) / 1e6
        )
        adapter = f" ({trainer_state:.2f} M of them an adapter)" if setup.parts.adapter else ""
        resumed = f" (from step {self._first:,})" if self._first else ""
        n = setup.distributed.share.of
        distributed = "" if setup.distributed.alone else f" by {n} processes"
        self._say(
            f"{policy.type}, {millions:.1f} M parameters{adapter}, on {frames:,} frames of "
            f"{setup.config.dataset.repo_id or setup.config.dataset.root}, {setup.device}: "
            f"{setup.config.steps:,} steps of {setup.order.step_size}{distributed}{resumed} -> "
            f"{self._folder.path}"
        )
        for note in setup.parts.notes:
            self._say(f"note: {note}")
        before = trainer.trainer_state.processes
        if before not in (None, n):
            self._say(
                f"note: {n} process(es) instead of {before}: a step is {setup.order.step_size} "
                "samples from here on, in another order than the undisturbed run's"
            )

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
