"""Config of ``proctor train``: LeRobot's flags and defaults, and some of Proctor's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from proctor.benchmarks.base import BenchmarkConfig
from proctor.config.base import MOST_SEED, Config, plugin_section
from proctor.config.evaluation import EvalConfig
from proctor.config.flags.help_lines import VARIES
from proctor.config.flags.parsing import Flag, flags_of
from proctor.config.sections.evaluation import EvalSettings, VideoSettings
from proctor.config.sections.peft import PeftSettings
from proctor.config.sections.training import (
    AcceleratorSettings,
    EmaSettings,
    ParallelismSettings,
    StartMethod,
    TrainDatasetSettings,
    TrainWandbConfig,
)
from proctor.datasets.cache_settings import CacheKind
from proctor.errors import UsageError
from proctor.fingerprint import PRESENTATION, ConfigUse, flatten
from proctor.policies.base import PolicyConfig
from proctor.policies.lerobot.checkpoint.pretrained import PretrainedConfig
from proctor.policies.lerobot.config.families import REWARD_MODELS
from proctor.policies.lerobot.config.presets import OptimizerSettings, ScheduleSettings
from proctor.settings import require_finite, setting


@dataclass
class TrainingConfig(Config):
    """Settings that every training has: on demonstrations, and by reinforcement learning."""

    help_group: ClassVar[str] = "Training"
    help_groups: ClassVar[Mapping[str, str]] = {
        "Run folder": "output_dir job_name resume",
        "Checkpoints": "save_checkpoint save_freq save_minutes keep_last",
    }
    use: ClassVar[ConfigUse] = ConfigUse.TRAINING

    policy: PolicyConfig = plugin_section("policies", type_of_path="pretrained")
    env: BenchmarkConfig | None = plugin_section("benchmarks", optional=True)
    output_dir: Path | None = setting(
        None, "folder of the training (default: outputs/train/DATE/TIME_JOB)", PRESENTATION
    )
    job_name: str | None = setting(
        None, "name in the default run folder (default: ENV_POLICY)", PRESENTATION
    )
    resume: bool = setting(
        False,
        "continue from the newest checkpoint in output_dir, or that of --config_path",
        PRESENTATION,
    )
    seed: int = setting(
        1000,
        "seed of weight initialisation, data order, noise and evaluation episodes",
        least=0,
        most=MOST_SEED,
    )
    batch_size: int = setting(8, "samples per batch, in every process", least=1, most=10**6)
    log_freq: int = setting(200, "optimiser steps between log lines", least=1)
    save_checkpoint: bool = setting(True, "save checkpoints")
    save_freq: int = setting(20_000, "optimiser steps between checkpoints", least=1)
    save_minutes: float = setting(
        10.0,
        "minutes without a checkpoint after which an interim one is saved, until the next of "
        "--save_freq replaces it; 0: no interim checkpoints",
        least=0,
        most=10**6,
    )
    keep_last: int | None = setting(
        None, "number of newest checkpoints to keep (default: all)", least=1
    )
    env_eval_freq: int = setting(
        20_000,
        "optimiser steps between evaluations in --env, and one after the last step; 0: never",
        least=0,
    )
    eval: EvalSettings = field(default_factory=EvalSettings)
    video: VideoSettings = field(default_factory=VideoSettings, metadata=PRESENTATION)
    wandb: TrainWandbConfig = field(default_factory=TrainWandbConfig, metadata=PRESENTATION)

    @property
    def evaluates_in_env(self) -> bool:
        """Whether checkpoints are evaluated in ``env``, and ranked by success rate."""
        return self.env is not None and self.env_eval_freq > 0

    def validate(self) -> None:
        """Refuse invalid values."""
        super().validate()
        require_finite(flatten(self.as_dict()))


@dataclass
class TrainConfig(TrainingConfig):
    """Config of a training: policy, dataset, optimiser steps, evaluation and run folder."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Data loading": "num_workers prefetch_factor dataloader_multiprocessing_context "
        "tolerance_s",
        "Checkpoints": "keep_best",
        "Validation and evaluation": "eval_steps max_eval_samples env_eval_freq",
    }

    first: ClassVar[str] = (
        "dataset.repo_id dataset.root dataset.episodes dataset.image_size dataset.cache "
        "dataset.image_transforms.enable policy.type policy.path policy.device policy.chunk_size "
        "policy.n_action_steps optimizer.lr steps batch_size num_workers seed output_dir resume "
        "config_path save_freq env_eval_freq env.type env.task eval.n_episodes wandb.enable"
    )

    dataset: TrainDatasetSettings = field(default_factory=TrainDatasetSettings)
    steps: int = setting(
        100_000, "optimiser steps; with gradient accumulation: batches", least=1, most=10**9
    )
    num_workers: int = setting(
        4,
        "data loader worker processes, which decode images; 0: decode in the training process",
        least=0,
        most=256,
    )
    prefetch_factor: int = setting(
        4, "batches prefetched by each data loader worker", least=1, most=1000
    )
    dataloader_multiprocessing_context: StartMethod = setting(
        StartMethod.SPAWN, "multiprocessing start method of the data loader workers"
    )
    tolerance_s: float = setting(
        1e-4,
        "maximum difference in seconds between a requested timestamp and its video frame",
        above=0,
    )
    keep_best: int | None = setting(
        None,
        "with --keep_last: number of best checkpoints to keep, by success rate in --env, "
        "else by validation loss (default: 0)",
        least=1,
    )
    stop_on_divergence: bool = setting(
        False,
        "end the training if the loss rises to 1.25 times, and the gradient norm to 4 times, "
        "their usual values; else it warns and goes on",
    )
    eval_steps: int = setting(
        0, "optimiser steps between computations of the validation loss (default: never)", least=0
    )
    max_eval_samples: int = setting(
        0, "maximum samples of the validation loss, balanced over tasks (default: all)", least=0
    )
    use_policy_training_preset: bool = setting(
        True,
        "use the policy family's optimiser and schedule; false: those of --optimizer.* and "
        "--scheduler.*",
    )
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    scheduler: ScheduleSettings = field(default_factory=ScheduleSettings)
    accelerator: AcceleratorSettings = field(default_factory=AcceleratorSettings)
    parallelism: ParallelismSettings = field(default_factory=ParallelismSettings)
    ema: EmaSettings = field(default_factory=EmaSettings)
    peft: PeftSettings = field(default_factory=PeftSettings)
    cudnn_deterministic: bool = setting(
        False, "on CUDA, use deterministic kernels only: bit-exact repeats, slower"
    )

    @property
    def accumulation(self) -> int:
        """Batches whose gradients are accumulated for one update."""
        return self.accelerator.gradient_accumulation.steps

    def saves_after(self, step: int) -> bool:
        """Return whether a checkpoint is written after ``step`` steps."""
        due = step % self.save_freq == 0 or step == self.steps or self.evaluates_after(step)
        return self.save_checkpoint and due

    def evaluates_after(self, step: int) -> bool:
        """Return whether the policy is evaluated in ``env`` after ``step`` steps."""
        return self.evaluates_in_env and (step % self.env_eval_freq == 0 or step == self.steps)

    @classmethod
    def more_flags(cls) -> list[Flag]:
        """Return the flags of a reward classifier, which is trained instead of a policy."""
        from proctor.policies.reward_classifier.config import RewardClassifierConfig

        group = "Reward model"
        names = ", ".join(REWARD_MODELS)
        kind = Flag("reward_model.type", str, VARIES, f"one of {names}", group=group)
        path = Flag(
            "reward_model.path",
            str,
            None,
            "trained classifier to start from, a folder or a Hub id",
            default_help="a new classifier",
            group=group,
        )
        own = flags_of(RewardClassifierConfig, "reward_model.", use=cls.use)
        others = [flag for flag in own if flag.name not in (kind.name, path.name)]
        return [kind, path, *(replace(flag, alias=None, group=group) for flag in others)]

    def validate(self) -> None:
        """Refuse invalid values."""
        if not self.dataset.repo_id and self.dataset.root is None:
            raise UsageError(
                "--dataset.repo_id is missing (or --dataset.root=FOLDER)", code="flag.missing"
            )
        super().validate()
        self._validate_keeping()
        self._validate_dataset()
        self._validate_accumulation()
        if self.accelerator.compile.enabled and self.parallelism.dp_shard > 1:
            raise UsageError(
                "--accelerator.compile.enabled is not for --parallelism.dp_shard",
                code="flag.conflict",
            )
        self._validate_adapter()
        if self.env is not None:
            if not self.save_checkpoint:
                raise UsageError(
                    "--env evaluates checkpoints; leave out --save_checkpoint=false",
                    code="flag.conflict",
                )
            played = EvalConfig(PolicyConfig(), self.env, self.eval, video=self.video)
            played.validate()  # otherwise the evaluation would fail after hours of training

    def _validate_adapter(self) -> None:
        self.peft.validate()
        if not self.peft.active:
            return
        if not isinstance(self.policy, PretrainedConfig):
            raise UsageError(
                "--peft.* adapts a trained policy: give it as --policy.path=DIR, without a "
                "--policy.type",
                code="flag.conflict",
            )
        if self.ema.enable:
            raise UsageError(
                "--ema.enable averages weights, which --peft.* freezes; leave out one of them",
                code="flag.conflict",
            )
        if self.parallelism.dp_shard > 1 or self.accelerator.compile.enabled:
            raise UsageError(
                "--peft.* is not for --parallelism.dp_shard or --accelerator.compile",
                code="flag.conflict",
            )

    def _validate_keeping(self) -> None:
        if self.keep_best is None:
            return
        if self.keep_last is None:
            raise UsageError(
                "--keep_best needs --keep_last=N; without it all checkpoints are kept",
                code="flag.missing",
            )
        if not self.evaluates_in_env and not self.eval_steps:
            raise UsageError(
                "--keep_best needs --env or --eval_steps to rank checkpoints",
                code="flag.missing",
            )
        meet = 0 if self.evaluates_in_env else math.lcm(self.eval_steps, self.save_freq)
        if meet > self.steps and self.steps % self.eval_steps:
            raise UsageError(
                f"--keep_best: no checkpoint has a validation loss: --eval_steps={self.eval_steps} "
                f"and --save_freq={self.save_freq} meet at step {meet}, and --steps={self.steps}",
                code="flag.conflict",
            )

    def _validate_dataset(self) -> None:
        given = self.dataset
        given.image_transforms.validate()
        sides = given.image_size
        if sides is not None and not (len(sides) == 2 and all(8 <= n <= 4096 for n in sides)):
            raise UsageError(
                f"--dataset.image_size is {sides} (give [height,width], 8 to 4096 pixels each)",
                code="flag.out-of-range",
            )
        if self.eval_steps and not given.eval_split:
            raise UsageError(
                "--eval_steps needs validation episodes: add --dataset.eval_split=0.1",
                code="flag.missing",
            )
        if given.episodes is not None and given.exclude_episodes is not None:
            raise UsageError(
                "--dataset.episodes or --dataset.exclude_episodes: give one of them",
                code="flag.conflict",
            )
        if given.streaming and given.cache is not CacheKind.OFF:
            raise UsageError(
                "--dataset.streaming has no cache: leave out --dataset.cache", code="flag.conflict"
            )
        if given.streaming and given.balance_tasks:
            raise UsageError(
                "--dataset.balance_tasks needs all frames: leave out --dataset.streaming",
                code="flag.conflict",
            )

    def _validate_accumulation(self) -> None:
        n = self.accumulation
        names = ["steps", "save_freq", *(["env_eval_freq"] if self.env is not None else [])]
        for name in names:
            if getattr(self, name) % n:  # checkpoints hold no partially accumulated gradients
                raise UsageError(
                    f"--{name} must be a multiple of {n}, the batches of one update "
                    f"(--accelerator.gradient_accumulation.steps), got {getattr(self, name)}",
                    code="flag.out-of-range",
                )
