"""Shows and logs an online training, writes its checkpoints and has them evaluated."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from proctor.callbacks.progress import ProgressLine, duration_text
from proctor.callbacks.wandb import WandbSession, error_figures, staging_variables
from proctor.config.online_training import OnlineTrainConfig
from proctor.errors import WriteFailed
from proctor.fingerprint import without_secrets
from proctor.report.training.page import write_training_page
from proctor.rl.learner.learner import Learner, LearnerCounters
from proctor.rl.learner.metrics import SUCCESS, SUCCESS_AT_END, OnlineMetrics
from proctor.runs.training import (
    EVALUATIONS,
    EvaluationLogRow,
    is_news,
    read_training_log,
)
from proctor.system.platform.environment import temporary_environment
from proctor.training.checkpoints.evaluation import CheckpointEvaluator
from proctor.training.checkpoints.folder import TrainingFolder
from proctor.training.checkpoints.saving import BEST, PRETRAINED
from proctor.training.metrics.stopping import SaveTimer, StopRequests

_STEP = "Interaction step"


class OnlineWandb(WandbSession):
    """Logs metrics, evaluations and checkpoints of an online training to W&B."""

    axes: ClassVar[Mapping[str, str]] = {
        "train/*": f"train/{_STEP}",
        "eval/*": f"eval/{_STEP}",
    }
    job_type = "train_eval"

    def __init__(self, config: OnlineTrainConfig, folder: Path) -> None:
        env = "robot" if config.env is None else config.env.type
        tags = [f"policy:{config.policy.type}", f"seed:{config.seed}", f"env:{env}"]
        self._with_weights = not config.wandb.disable_artifact
        self._group = re.sub(r"[^\w.-]", "_", "-".join(tags))[:100]
        settings = without_secrets(config, config.as_dict())
        shown = [tag[:64] for tag in tags] if config.wandb.add_tags else []
        super().__init__(config.wandb, folder, settings, tags=shown, chosen_id=config.wandb.run_id)

    def log_metrics(self, metrics: OnlineMetrics) -> None:
        """Log metrics."""
        figures = metric_figures(metrics)
        self.submit(lambda run: run.log(figures))

    def log_evaluation(self, result: EvaluationLogRow) -> None:
        """Log the success rate of a checkpoint, with its interval."""
        if result.pc_success is None:
            return
        figures: dict[str, Any] = {
            f"eval/{_STEP}": result.step,
            "eval/pc_success": result.pc_success,
        }
        if result.interval is not None:
            figures["eval/pc_success_low95"], figures["eval/pc_success_high95"] = result.interval
        figures |= error_figures(result)
        self.submit(lambda run: run.log(figures))

    def upload_checkpoint(self, step: int, checkpoint: Path) -> None:
        """Upload the weights of a checkpoint, unless artifacts are disabled."""
        if self._with_weights:
            self.submit(lambda run: self._upload(run, step, checkpoint / PRETRAINED))

    def _upload(self, run: Any, step: int, policy: Path) -> None:
        import wandb

        file = policy / "model.safetensors"
        if not file.is_file():
            return  # --keep_last has removed it since
        with temporary_environment(staging_variables(self._folder / "wandb")):
            artifact = wandb.Artifact(f"{self._group}-{step:06d}", type="model")
            artifact.add_file(str(file))
            run.log_artifact(artifact)


def metric_figures(metrics: OnlineMetrics) -> dict[str, float]:
    """Return metrics by LeRobot's names."""
    figures: dict[str, float | None] = {
        _STEP: metrics.step,
        "Optimization step": metrics.updates,
        **metrics.losses,
        "replay_buffer_size": metrics.online_buffer,
        "offline_replay_buffer_size": metrics.offline_buffer,
        "Optimization frequency loop [Hz]": metrics.updates_per_s,
        "Episodic reward": metrics.reward,
        "Intervention rate": metrics.intervention_rate,
        SUCCESS: metrics.success,
        SUCCESS_AT_END: metrics.success_at_end,
    }
    return {f"train/{name}": value for name, value in figures.items() if value is not None}


WriteCheckpoint = Callable[[Learner, Path], None]
"""Writes the files of a checkpoint into an empty folder."""


class OnlineMonitor:
    """The observer of a learner: progress line, log, checkpoints and evaluations."""

    def __init__(
        self,
        folder: TrainingFolder,
        config: OnlineTrainConfig,
        online_steps: int,
        write: WriteCheckpoint,
        stop: StopRequests,
        console: Console,
    ) -> None:
        self._folder, self._config, self._stop, self._console = folder, config, stop, console
        self._online_steps, self._write = online_steps, write
        self._checkpoints = folder.checkpoints(online_steps)
        self._evaluator = CheckpointEvaluator(config, folder.path / EVALUATIONS)
        self._scores = folder.scores(by_success=True)
        self._tracking = OnlineWandb(config, folder.path) if config.wandb.active else None
        self._timer = SaveTimer(config.save_minutes)
        self._line = ProgressLine(console)
        self._first = 0
        self._saved = self._saved_updates = -1
        self._began: float | None = None
        self._rate = ""
        self._losses = ""
        self._text = "waiting for the first transitions"

    def begin(self, learner: Learner) -> None:
        """Begin a session: count from the learner's state."""
        self._saved = learner.counters.environment_steps
        self._saved_updates = learner.algorithm.step
        if learner.is_done:
            self._text = "all environment steps are done; --policy.online_steps=N continues"
        self._resume_evaluations()

    def say(self, text: str) -> None:
        """Print a line above the progress line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def on_progress(self, counters: LearnerCounters) -> None:
        """Show the number of environment steps."""
        step = counters.environment_steps
        if self._began is None:  # the start of the actors does not count
            self._began, self._first = time.monotonic(), step
        parts = [
            f"step {step:,}/{self._online_steps:,}",
            f"{counters.episodes:,} episode{'s' * (counters.episodes != 1)}",
            self._rate,
            self._time_left(step),
            self._losses,
        ]
        self._text = "  ".join(part for part in parts if part)
        self._line.show(self._text)

    def on_metrics(self, metrics: OnlineMetrics) -> None:
        """Show and log metrics."""
        self._folder.log(metrics.as_row())
        if self._tracking is not None:
            self._tracking.log_metrics(metrics)
        shown = ("loss_critic", "loss_actor", "temperature")
        values = [(name, metrics.losses[name]) for name in shown if name in metrics.losses]
        self._losses = "  ".join(
            [f"{name} {value:.4g}" for name, value in values]
            + [f"{metrics.updates_per_s:,.0f} updates/s"]
        )
        if metrics.reward is not None:
            self._rate = f"reward {metrics.reward:.3g}"
        if metrics.intervention_rate:
            self._rate += f"  interventions {metrics.intervention_rate:.0%}"
        if self._evaluator.pending:
            self._record_evaluations(self._evaluator.finished())

    def save_if_due(self, learner: Learner) -> None:
        """Write a checkpoint if one is due by updates, by environment steps or by time."""
        config, step = self._config, learner.counters.environment_steps
        if not config.save_checkpoint or step <= self._saved:
            return
        updates = learner.algorithm.step
        by_updates = updates // config.save_freq > self._saved_updates // config.save_freq
        evaluated = self._is_evaluated(step) and step < self._online_steps
        if by_updates or evaluated:
            self._save(learner, interim=False, evaluated=evaluated)
        elif self._timer.is_due:
            self._save(learner, interim=True)

    def save_last(self, learner: Learner) -> None:
        """Write the checkpoint of the end, or of a stop."""
        if not self._config.save_checkpoint:
            return
        if learner.counters.environment_steps > self._saved:
            done = learner.is_done
            self._save(learner, interim=not done, evaluated=done and self._config.evaluates_in_env)

    def _is_evaluated(self, step: int) -> bool:
        """Return whether an evaluation is due since the last checkpoint."""
        config = self._config
        if not config.evaluates_in_env:
            return False
        return step // config.env_eval_freq > max(0, self._saved) // config.env_eval_freq

    def _save(self, learner: Learner, *, interim: bool, evaluated: bool = False) -> None:
        step = learner.counters.environment_steps
        learner.check_weights()
        learner.storage.sync()
        path = self._checkpoints.save(
            step, lambda folder: self._write(learner, folder), interim=interim
        )
        self._saved, self._saved_updates = step, learner.algorithm.step
        learner.storage.forget_before(learner.admitted)
        self._timer.restart()
        if self._tracking is not None and not interim:
            self._tracking.upload_checkpoint(step, path)
        if evaluated and self._stop.requested is None:
            self._evaluator.submit(path)
        self._record_evaluations(self._evaluator.finished())
        self.write_report()

    def _resume_evaluations(self) -> None:
        """Log evaluations that ended after an earlier session was killed."""
        if not self._config.evaluates_in_env:
            return
        logged = read_training_log(self._folder.path)
        for checkpoint in self._checkpoints.all():
            if not (self._folder.path / EVALUATIONS / checkpoint.name).is_dir():
                continue
            found = self._evaluator.result_of(checkpoint)
            if found is None:
                self._evaluator.submit(checkpoint)
            elif is_news(found, logged):
                self._record_evaluations([found])

    def wait_for_evaluations(self) -> None:
        """Wait for the pending evaluations."""
        if self._evaluator.pending:
            self.close_line()
            self.say(f"waiting for {len(self._evaluator.pending)} evaluation(s)")
        self._record_evaluations(self._evaluator.wait_for_all())

    def close_line(self) -> None:
        """Finish the progress line."""
        self._line.close(self._text)

    def close(self, *, failed: bool = False) -> None:
        """Stop running evaluations, finish the progress line, and wait until W&B has everything."""
        self._evaluator.stop()
        self.close_line()
        if self._tracking is not None:
            tracking, self._tracking = self._tracking, None
            tracking.end(failed=failed)

    def write_report(self) -> Path:
        """Write the report page, and return its path."""
        return write_training_page(self._folder.path)

    def _record_evaluations(self, results: Iterable[EvaluationLogRow]) -> None:
        for result in results:
            if result.problem is not None and self._stop.requested is not None:
                continue  # the signal also reached the evaluation, which a resumed run continues
            self.say(str(result))
            self._folder.log({"kind": "evaluation", **asdict(result)})
            if self._tracking is not None:
                self._tracking.log_evaluation(result)
            note = result.errors_note(
                self._folder.path / EVALUATIONS / self._checkpoints.path(result.step).name
            )
            if note is not None:
                self.say(note)
            if result.score is not None:
                self._scores[result.step] = result.score
            self.write_report()
        self._prune_checkpoints()

    def _prune_checkpoints(self) -> None:
        """Remove old checkpoints, and link ``best`` to the best remaining one."""
        try:
            self._checkpoints.remove_superseded()
            if self._config.keep_last is not None:
                self._checkpoints.keep(self._config.keep_last, self._evaluator.pending)
            existing = {int(path.name) for path in self._checkpoints.all()}
            scored = [step for step in self._scores if step in existing]
            if scored:
                best = max(scored, key=lambda step: (self._scores[step], step))
                self._checkpoints.name(BEST, self._checkpoints.path(best))
        except OSError as error:
            raise WriteFailed(self._checkpoints.folder, error) from error

    def _time_left(self, step: int) -> str:
        if self._began is None or step == self._first:
            return ""
        elapsed, left = time.monotonic() - self._began, self._online_steps - step
        if left <= 0:
            return f"done in {duration_text(elapsed)}"
        return f"{duration_text(elapsed / (step - self._first) * left)} left"
