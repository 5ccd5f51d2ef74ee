"""Logs an online training to Weights & Biases; LeRobot's names of metrics, by environment step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from proctor.callbacks.wandb import WandbSession, error_figures, staging_variables
from proctor.config.online_training import OnlineTrainConfig
from proctor.fingerprint import without_secrets
from proctor.rl.learner.metrics import SUCCESS, SUCCESS_AT_END, OnlineMetrics
from proctor.runs.training import EvaluationLogRow
from proctor.system.platform.environment import temporary_environment
from proctor.training.checkpoints.saving import PRETRAINED

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
