"""Logs a training to Weights & Biases with LeRobot's keys, on a thread of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from proctor.callbacks.wandb import WandbSession, error_figures, staging_variables
from proctor.config.training import TrainConfig
from proctor.fingerprint import without_secrets
from proctor.runs.journal import videos_in
from proctor.runs.training import EvaluationLogRow
from proctor.system.platform.environment import temporary_environment
from proctor.training.checkpoints.saving import PRETRAINED
from proctor.training.metrics.metrics import Metrics
from proctor.training.setup import TrainingSetup

_WEIGHTS = ("model.safetensors", "adapter_model.safetensors", "adapter_config.json")
"""Weight files of a checkpoint: the first, or for an adapter the others."""


class TrainingWandb(WandbSession):
    """Logs metrics, evaluations and checkpoints of a training to W&B."""

    axes: ClassVar[Mapping[str, str]] = {"train/*": "train/steps", "eval/*": "eval/steps"}
    job_type = "train_eval"

    def __init__(self, setup: TrainingSetup, folder: Path) -> None:
        config = setup.config
        self._samples = config.batch_size * setup.distributed.share.world_size
        self._frames, self._on_gpu = len(setup.order.frames), setup.device.type == "cuda"
        self._with_weights = not config.wandb.disable_artifact
        self._group = re.sub(r"[^\w.-]", "_", "-".join(wandb_tags(config)))[:100]
        tags = wandb_tags(config) if config.wandb.add_tags else []
        settings = without_secrets(config, config.as_dict())
        super().__init__(config.wandb, folder, settings, tags=tags, chosen_id=config.wandb.run_id)

    def log_metrics(self, metrics: Metrics) -> None:
        """Log metrics."""
        figures = self.figures(metrics)
        self.submit(lambda run: run.log(figures))

    def figures(self, metrics: Metrics) -> dict[str, float]:
        """Return metrics by LeRobot's names; waiting for batches is ``dataloading_s``."""
        samples = metrics.step * self._samples
        figures = {
            "steps": metrics.step,
            "samples": samples,
            "epochs": samples / self._frames,
            "loss": metrics.loss,
            "grad_norm": metrics.grad_norm,
            "lr": metrics.lr,
            "dataloading_s": metrics.step_s * metrics.waiting,
            "update_s": metrics.step_s * (1 - metrics.waiting),
            "step_s": metrics.step_s,
            "samples_per_s": metrics.samples_per_s,
            **metrics.parts,
        }
        if self._on_gpu:
            figures["gpu_mem_gb"] = metrics.memory_gb
        return {f"train/{name}": value for name, value in figures.items()}

    def log_validation(self, step: int, loss: float) -> None:
        """Log a validation loss."""
        self.submit(lambda run: run.log({"eval/steps": step, "eval/eval_loss": loss}))

    def log_evaluation(self, result: EvaluationLogRow, folder: Path) -> None:
        """Log the success rate of a checkpoint, and one video of the evaluation in ``folder``."""
        if result.pc_success is None:
            return
        figures: dict[str, Any] = {"eval/steps": result.step, "eval/pc_success": result.pc_success}
        if result.avg_sum_reward is not None:
            figures["eval/avg_sum_reward"] = result.avg_sum_reward
        if result.eval_s is not None:
            figures["eval/eval_s"] = result.eval_s
        if result.interval is not None:
            figures["eval/pc_success_low95"], figures["eval/pc_success_high95"] = result.interval
        figures |= error_figures(result)
        self.submit(lambda run: run.log(figures | _video(folder)))

    def upload_checkpoint(self, step: int, checkpoint: Path) -> None:
        """Upload the weights of a checkpoint, unless artifacts are disabled."""
        if self._with_weights:
            self.submit(lambda run: self._upload(run, step, checkpoint / PRETRAINED))

    def _upload(self, run: Any, step: int, policy: Path) -> None:
        import wandb

        files = [policy / name for name in _WEIGHTS if (policy / name).is_file()]
        if not files:
            return  # --keep_last has removed it since
        if len(files) > 1:
            files.append(policy / "config.json")
        with temporary_environment(staging_variables(self._folder / "wandb")):
            artifact = wandb.Artifact(f"{self._group}-{step:06d}", type="model")
            for file in files:
                artifact.add_file(str(file))
            run.log_artifact(artifact)


def wandb_tags(config: TrainConfig) -> list[str]:
    """Return the tags of a run, as LeRobot sets them."""
    values = {
        "policy": getattr(config.policy, "type", None),
        "seed": config.seed,
        "dataset": config.dataset.repo_id or None,
        "env": None if config.env is None else config.env.type,
    }
    tags = [f"{name}:{value}" for name, value in values.items() if value is not None]
    return [tag[:64] for tag in tags]  # the limit of W&B


def _video(folder: Path) -> dict[str, Any]:
    import wandb

    videos = sorted(videos_in(folder))
    return {"eval/video": wandb.Video(str(folder / videos[0]), format="mp4")} if videos else {}
