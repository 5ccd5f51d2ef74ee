"""Weights & Biases of a training: LeRobot's keys, against the steps, by a thread of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from proctor.callbacks.wandb import WandbSession, staging_variables
from proctor.config.training import TrainConfig
from proctor.fingerprint import without_secrets
from proctor.runs.journal import videos_in
from proctor.runs.training import EvaluationLogRow
from proctor.system.environment import temporary_environment
from proctor.training.checkpoints import PRETRAINED
from proctor.training.metrics import Metrics
from proctor.training.setup import TrainingSetup

_WEIGHTS = ("model.safetensors", "adapter_model.safetensors", "adapter_config.json")
"""Of which a checkpoint has the first or the others; of an adapter the config goes along."""


class TrainingWandb(WandbSession):
    """Tells W&B how a training goes."""

    axes: ClassVar[Mapping[str, str]] = {"train/*": "train/steps", "eval/*": "eval/steps"}
    job_type = "train_eval"

    def __init__(self, setup: TrainingSetup, folder: Path) -> None:
        config = setup.config
        self._samples = config.batch_size * setup.distributed.share.world_size
        self._frames, self._on_gpu = len(setup.order.frames), setup.device.type == "cuda"
        self._with_weights = not config.wandb.disable_artifact
        self._group = re.sub(r"[^\w.-]", "_", "-".join(wandb_tags(config)))[:100]
        tags = wandb_tags(config) if config.wandb.add_tags else []
        told = without_secrets(config, config.as_dict())
        super().__init__(config.wandb, folder, told, tags=tags, chosen_id=config.wandb.run_id)

    def log_metrics(self, metrics: Metrics) -> None:
        """Log a reading."""
        figures = self.figures(metrics)
        self.submit(lambda run: run.log(figures))

    def figures(self, metrics: Metrics) -> dict[str, float]:
        """Return a reading by LeRobot's names; a batch waited for is its time of loading data."""
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
        """Log a loss on held-out episodes."""
        self.submit(lambda run: run.log({"eval/steps": step, "eval/eval_loss": loss}))

    def log_evaluation(self, result: EvaluationLogRow, folder: Path) -> None:
        """Log the rate of a checkpoint and one video of its evaluation, which is in ``folder``."""
        if result.pc_success is None:
            return
        figures: dict[str, Any] = {"eval/steps": result.step, "eval/pc_success": result.pc_success}
        if result.avg_sum_reward is not None:
            figures["eval/avg_sum_reward"] = result.avg_sum_reward
        if result.eval_s is not None:
            figures["eval/eval_s"] = result.eval_s
        if result.interval is not None:
            figures["eval/pc_success_low95"], figures["eval/pc_success_high95"] = result.interval
        self.submit(lambda run: run.log(figures | _video(folder)))

    def upload_checkpoint(self, step: int, checkpoint: Path) -> None:
        """Upload the weights of a checkpoint, unless that is not wanted."""
        if self._with_weights:
            self.submit(lambda run: self._upload(run, step, checkpoint / PRETRAINED))

    def _upload(self, run: Any, step: int, policy: Path) -> None:
        import wandb

        there = [policy / name for name in _WEIGHTS if (policy / name).is_file()]
        if not there:
            return  # --keep_last has removed it since
        if len(there) > 1:
            there.append(policy / "config.json")
        with temporary_environment(staging_variables(self._folder / "wandb")):
            artifact = wandb.Artifact(f"{self._group}-{step:06d}", type="model")
            for file in there:
                artifact.add_file(str(file))
            run.log_artifact(artifact)


def wandb_tags(config: TrainConfig) -> list[str]:
    """Return LeRobot's tags."""
    said = {
        "policy": getattr(config.policy, "type", None),
        "seed": config.seed,
        "dataset": config.dataset.repo_id or None,
        "env": None if config.env is None else config.env.type,
    }
    tags = [f"{name}:{value}" for name, value in said.items() if value is not None]
    return [tag[:64] for tag in tags]  # W&B takes no longer ones


def _video(folder: Path) -> dict[str, Any]:
    import wandb

    filmed = sorted(videos_in(folder))
    return {"eval/video": wandb.Video(str(folder / filmed[0]), format="mp4")} if filmed else {}
