"""Shows and logs a training, has checkpoints evaluated and keeps the best ones."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from proctor.callbacks.progress import ProgressLine, duration_text
from proctor.callbacks.progress_updates import UpdateSender
from proctor.errors import WriteFailed
from proctor.report.training.page import write_training_page
from proctor.runs.folder import write_run_file
from proctor.runs.training import (
    DIVERGENCE_FILE,
    EVALUATIONS,
    EvaluationLogRow,
    is_news,
    read_training_log,
)
from proctor.system.files import display_path
from proctor.training.checkpoints.evaluation import CheckpointEvaluator
from proctor.training.checkpoints.folder import TrainingFolder, metrics_row
from proctor.training.checkpoints.saving import BEST, LAST
from proctor.training.loop import Trainer
from proctor.training.metrics.metrics import Metrics
from proctor.training.metrics.stopping import StopRequests
from proctor.training.metrics.tracking import TrainingWandb
from proctor.training.optim.divergence import Divergence


class TrainingMonitor:
    """Shows metrics on the progress line, writes the log, and manages checkpoints."""

    def __init__(
        self,
        folder: TrainingFolder,
        trainer: Trainer,
        stop: StopRequests,
        console: Console,
        sender: UpdateSender | None = None,
    ) -> None:
        """Show progress on ``console``, and pass it to ``sender``."""
        self._folder, self._config, self._stop = folder, trainer.setup.config, stop
        self._first, self._began = trainer.trainer_state.step, time.monotonic()
        self._step = self._first
        self._checkpoints = folder.checkpoints(self._config.steps)
        self._scores = folder.scores(by_success=self._config.evaluates_in_env)
        self._evaluator = CheckpointEvaluator(self._config, folder.path / EVALUATIONS)
        self._console, self._sender = console, sender
        self.failure: Exception | None = None
        """The exception of the function that receives progress; it stops the training."""
        self._loss = ""
        self._skipped = 0
        self._before_rise: Path | None = None
        """The checkpoint from before the first rise; --keep_last does not remove it."""
        wanted = self._config.wandb.active
        self._tracking = TrainingWandb(trainer.setup, folder.path) if wanted else None
        self._headline(trainer)
        self._line = ProgressLine(self._console)
        done = f"step {self._first:,}: nothing is left to train"
        self._text = done if trainer.done else "starting"

    def on_frames_decoded(self, camera: str, frames: int, total: int) -> None:
        """Show the progress of filling a cache."""
        text = f"decoding {camera}: {frames:,}/{total:,} frames"
        self._line.show(text)
        if self._sender is not None and self._sender.is_due:
            self._send(self._first, text)

    def on_step(self, step: int) -> None:
        """Pass on the progress, if it is time."""
        if self._sender is None:
            return
        if step == self._first + 1:
            self._sender.begin(step)
        if self._sender.is_due:
            parts = [f"step {step:,}/{self._config.steps:,}", self._loss, self._time_left(step)]
            self._send(step, "  ".join(part for part in parts if part))

    def _send(self, step: int, text: str) -> None:
        """Pass on the progress; an exception stops the training after a checkpoint."""
        assert self._sender is not None
        try:
            self._sender.send(step, self._config.steps, text)
        except Exception as error:  # noqa: BLE001  the session raises it
            self.failure = error
            self._stop.request()

    def on_metrics(self, metrics: Metrics) -> None:
        """Show and log metrics."""
        self._skipped += metrics.skipped
        self._folder.log(metrics_row(metrics))
        if self._tracking is not None:
            self._tracking.log_metrics(metrics)
        self._text, self._step = self.metrics_text(metrics), metrics.step
        self._loss = f"loss {metrics.loss:.4g}"
        self._line.show(self._text)
        if self._evaluator.pending:
            self._record_evaluations(self._evaluator.finished())

    def on_validation(self, step: int, loss: float) -> None:
        """Show and log a validation loss."""
        self._folder.log({"kind": "held_out", "step": step, "loss": loss})
        self._say(f"step {step:,}: validation loss {loss:.4g}")
        if self._tracking is not None:
            self._tracking.log_validation(step, loss)
        if not self._config.evaluates_in_env and math.isfinite(loss):
            self._scores[step] = -loss

    def on_checkpoint(self, step: int, checkpoint: Path) -> None:
        """Submit the checkpoint for evaluation if due, and remove old checkpoints."""
        if self._tracking is not None and not self._checkpoints.is_interim(checkpoint):
            self._tracking.upload_checkpoint(step, checkpoint)
        if self._config.evaluates_after(step) and self._stop.requested is None:
            self._evaluator.submit(checkpoint)
        self._record_evaluations(self._evaluator.finished())
        self.write_report()

    def on_divergence(self, divergence: Divergence, good: Path | None) -> Path:
        """Write the losses and gradient norms of the last steps; return their file.

        ``last`` names the checkpoint ``good`` from now on, so a resumed training begins there.
        """
        file = self._folder.path / DIVERGENCE_FILE
        write_run_file(file, divergence.to_jsonl())
        if good is not None:
            try:
                self._checkpoints.name(LAST, good)
            except OSError as error:
                raise WriteFailed(self._checkpoints.folder, error) from error
        return file

    def on_rise(self, divergence: Divergence, good: Path | None, advice: str) -> None:
        """Write the last steps, warn, and keep the checkpoint ``good``."""
        file = self._folder.path / DIVERGENCE_FILE
        write_run_file(file, divergence.to_jsonl())
        self._before_rise = self._before_rise or good
        self._say(
            f"warning: {divergence.text}: the training has probably diverged; see "
            f"{display_path(file)}; {advice}"
        )

    def lacks_validation(self, step: int) -> bool:
        """Return whether the log has no validation loss of this step."""
        return step not in self._folder.scores(by_success=False)

    def resume_evaluations(self) -> None:
        """Submit the checkpoints that an earlier session did not evaluate.

        Also log evaluations that ended after that session was killed.
        """
        logged = read_training_log(self._folder.path)
        for checkpoint in self._checkpoints.all():
            step = int(checkpoint.name)
            if self._config.evaluates_after(step):
                found = self._evaluator.result_of(checkpoint)
                if found is None:
                    self._evaluator.submit(checkpoint)
                elif is_news(found, logged):
                    self._record_evaluations([found])

    def wait_for_evaluations(self) -> None:
        """Wait for the pending evaluations."""
        if self._evaluator.pending:
            self._line.close(self._text)
            self._say(f"waiting for {len(self._evaluator.pending)} evaluation(s)")
        self._record_evaluations(self._evaluator.wait_for_all())

    def close(self, *, failed: bool = False) -> None:
        """Stop running evaluations, finish the progress line, and wait until W&B has everything."""
        self._evaluator.stop()
        self._line.close(self._text)
        if self._sender is not None:
            self._send(self._step, self._text)
        if self._tracking is not None:
            tracking, self._tracking = self._tracking, None
            tracking.end(failed=failed)

    def close_line(self) -> None:
        """Finish the progress line."""
        self._line.close(self._text)

    def close_at_once(self) -> None:
        """Ask a running evaluation to stop; wait for nothing."""
        self._evaluator.terminate()

    def write_report(self) -> Path:
        """Write the report page, and return its path."""
        return write_training_page(self._folder.path)

    def _record_evaluations(self, results: Iterable[EvaluationLogRow]) -> None:
        for result in results:
            if result.problem is not None and self._stop.requested is not None:
                continue  # the signal also reached the evaluation, which a resumed run continues
            self._say(str(result))
            self._folder.log({"kind": "evaluation", **asdict(result)})
            if self._tracking is not None:
                self._tracking.log_evaluation(result, self._evaluation_of(result.step))
            note = result.errors_note(self._evaluation_of(result.step))
            if note is not None:
                self._say(note)
            if result.score is not None:
                self._scores[result.step] = result.score
            self.write_report()
        self._prune_checkpoints()

    def _evaluation_of(self, step: int) -> Path:
        return self._folder.path / EVALUATIONS / self._checkpoints.path(step).name

    def _prune_checkpoints(self) -> None:
        """Remove old checkpoints, and link ``best`` to the best remaining one."""
        try:
            self._keep_and_name()
        except OSError as error:
            raise WriteFailed(self._checkpoints.folder, error) from error

    def _keep_and_name(self) -> None:
        self._checkpoints.remove_superseded()
        if self._config.keep_last is not None:
            best = frozenset(self._ranked()[: self._config.keep_best or 0])
            if self._before_rise is not None:
                best |= {int(self._before_rise.name)}
            self._checkpoints.keep(self._config.keep_last, best | self._evaluator.pending)
        ranked = self._ranked()
        if ranked:
            self._checkpoints.name(BEST, self._checkpoints.path(ranked[0]))
        else:
            self._checkpoints.unname(BEST)

    def _ranked(self) -> list[int]:
        """Return the steps with a score and a checkpoint, the best first."""
        existing = {int(path.name) for path in self._checkpoints.all()}
        scored = [step for step in self._scores if step in existing]
        return sorted(scored, key=lambda step: (self._scores[step], step), reverse=True)

    def metrics_text(self, metrics: Metrics) -> str:
        """Return metrics as text, the most important first, since narrow terminals cut the end."""
        parts = [
            f"step {metrics.step:,}/{self._config.steps:,}",
            f"loss {metrics.loss:.4g}",
            f"grad {metrics.grad_norm:.3g}",
            self._time_left(metrics.step),
            f"{metrics.samples_per_s:,.0f} samples/s",
            f"waiting {metrics.waiting:.1%}",
            f"{metrics.memory_gb:.1f} GB",
            f"lr {metrics.lr:.1e}",
            *(f"{name} {value:.4g}" for name, value in metrics.parts.items()),
        ]
        if self._skipped:  # early: it tells that something is wrong
            parts.insert(3, f"updates skipped: {self._skipped}")
        return "  ".join(parts)

    def _time_left(self, step: int) -> str:
        elapsed, left = time.monotonic() - self._began, self._config.steps - step
        if left == 0:
            return f"done in {duration_text(elapsed)}"
        return f"{duration_text(elapsed / max(1, step - self._first) * left)} left"

    def _headline(self, trainer: Trainer) -> None:
        setup = trainer.setup
        counts, policy = setup.frame_counts, setup.parts.config
        unused = f" (not used: {counts.unused_text})" if counts.unused_text else ""
        frames = f"{counts.used:,} of {counts.total:,}" if unused else f"{counts.used:,}"
        millions = sum(p.numel() for p in setup.parts.network.parameters()) / 1e6
        trainable = (
            sum(p.numel() for p in setup.parts.network.parameters() if p.requires_grad) / 1e6
        )
        adapter = f" ({trainable:.2f} M of them an adapter)" if setup.parts.adapter else ""
        resumed = f" (from step {self._first:,})" if self._first else ""
        n = setup.distributed.share.world_size
        distributed = "" if setup.distributed.is_single_process else f" by {n} processes"
        self._say(
            f"{policy.type}, {millions:.1f} M parameters{adapter}, on {frames} frames of "
            f"{setup.config.dataset.repo_id or setup.config.dataset.root}{unused}, "
            f"{setup.device}: "
            f"{setup.config.steps:,} steps of {setup.order.step_size}{distributed}{resumed} -> "
            f"{self._folder.path}"
        )
        for note in setup.parts.notes:
            self._say(f"note: {note}")
        before = trainer.trainer_state.processes
        if before not in (None, n):
            self._say(
                f"note: {n} process(es) instead of {before}: a step has {setup.order.step_size} "
                "samples from now on, in another order than in an uninterrupted run"
            )

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
