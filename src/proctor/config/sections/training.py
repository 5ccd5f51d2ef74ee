"""Sections of the training config: dataset, accelerator, parallelism, EMA and W&B."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar

from proctor.callbacks.wandb import WandbConfig
from proctor.config.sections.image_transforms import ImageTransformSettings
from proctor.datasets.cache_settings import FrameCacheSettings
from proctor.errors import UsageError
from proctor.fingerprint import LOCAL_PATH
from proctor.settings import setting


@dataclass
class DatasetLocation:
    """Where a dataset is: a Hub id, a folder, or both. Subclasses say what it is for."""

    repo_id: str = ""
    root: Path | None = setting(
        None, "folder of the dataset (default: $HF_LEROBOT_HOME/REPO_ID)", LOCAL_PATH
    )
    revision: str | None = setting(None, "branch, tag or commit on the Hub (default: v3.0)")

    @property
    def name(self) -> str:
        """The dataset's Hub id, or its folder."""
        return self.repo_id or str(self.root)

    @property
    def path_or_id(self) -> str | Path:
        """The dataset's Hub id, or its folder as a path, which is never looked for on the Hub."""
        if self.root is None:
            return self.repo_id
        root = self.root.expanduser()
        if not root.exists():
            pull = f"proctor data pull {self.repo_id or 'USER/NAME'} --root={self.root}"
            raise UsageError(
                f"--dataset.root: {root.absolute()} does not exist; correct it, or download the "
                f"dataset first ({pull})",
                code="dataset.not-found",
            )
        return self.repo_id or self.root


@dataclass
class TrainDatasetSettings(DatasetLocation, FrameCacheSettings):
    """The training dataset (--dataset.*)."""

    help_group: ClassVar[str] = "Dataset"

    repo_id: str = setting(
        "", "Hub id of the dataset, as user/name (required without dataset.root)"
    )
    episodes: list[int] | None = setting(None, "episodes to train on, as [0,3] (default: all)")
    exclude_episodes: list[int] | None = setting(
        None, "episodes to leave out, as [0,3] (default: no episodes)"
    )
    inputs: list[str] | None = setting(
        None,
        "input features of a new policy, as [observation.state] (default: all cameras and states)",
    )
    image_size: list[int] | None = setting(
        None,
        "resize decoded images to [height,width] pixels, the policy's input size (default: "
        "as recorded)",
    )
    use_imagenet_stats: bool = setting(
        True, "normalise images by ImageNet's mean and standard deviation; false: by the dataset's"
    )
    image_transforms: ImageTransformSettings = field(default_factory=ImageTransformSettings)
    streaming: bool = setting(
        False, "stream files from the Hub during training, without storing them"
    )
    balance_tasks: bool = setting(
        False, "sample all tasks equally often, whatever their number of frames"
    )
    paraphrase_tasks: bool = setting(
        False,
        "train on several wordings of each instruction: half of the samples keep the "
        "recorded one; --perturb=language evaluates with others",
    )
    eval_split: float = setting(
        0.0,
        "fraction of each task's episodes held out for the validation loss (--eval_steps), 0 "
        "to 1 (default: no validation)",
        least=0,
        below=1,
    )

    @property
    def size(self) -> tuple[int, int] | None:
        """``image_size``, as a pair."""
        if self.image_size is None:
            return None
        height, width = self.image_size
        return height, width


class Precision(Enum):
    """Number format of the computation; weights are always float32."""

    NO = "no"
    BF16 = "bf16"


@dataclass
class AccumulationSettings:
    """Gradient accumulation."""

    help_group: ClassVar[str] = "Accelerator"

    steps: int = setting(
        1, "gradient accumulation: batches per optimiser update", least=1, most=10**6
    )


@dataclass
class CompileSettings:
    """Settings of torch.compile."""

    help_group: ClassVar[str] = "torch.compile"

    enabled: bool = setting(False, "compile the network with torch.compile")
    backend: str = setting(
        "inductor",
        "torch.compile backend: inductor, or for debugging aot_eager or eager",
        choices=("inductor", "aot_eager", "eager"),
    )
    mode: str | None = setting(
        None,
        "torch.compile mode: default, reduce-overhead, max-autotune or "
        "max-autotune-no-cudagraphs (default: torch's)",
        choices=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    )
    regional: bool = setting(
        True,
        "regional compilation: compile repeated blocks once each; false: compile the whole "
        "loss function",
    )

    @property
    def records_cuda_graphs(self) -> bool:
        """Whether torch.compile records CUDA graphs itself."""
        modes = ("reduce-overhead", "max-autotune")
        return self.enabled and self.backend == "inductor" and self.mode in modes


@dataclass
class ParallelismSettings:
    """How processes (torchrun) share a training."""

    help_group: ClassVar[str] = "Parallelism"

    dp_replicate: int = setting(
        1, "data-parallel replicas of the model; 1: all processes that dp_shard leaves", least=1
    )
    dp_shard: int = setting(
        1, "processes that shard one copy of the weights (FSDP2); 1: no sharding", least=1
    )


@dataclass
class AcceleratorSettings:
    """How the accelerator is used."""

    help_group: ClassVar[str] = "Accelerator"

    mixed_precision: Precision = setting(
        Precision.NO,
        "precision of the computation: float32, with TF32 on CUDA (no), or autocast to "
        "bfloat16 (bf16)",
    )
    gradient_accumulation: AccumulationSettings = field(default_factory=AccumulationSettings)
    compile: CompileSettings = field(default_factory=CompileSettings)
    cuda_graph: bool | None = setting(
        None, "capture forward and backward pass in a CUDA graph (default: where possible)"
    )


@dataclass
class EmaSettings:
    """Exponential moving average (EMA) of the weights."""

    help_group: ClassVar[str] = "Exponential moving average (EMA)"

    enable: bool = setting(
        False,
        "keep an exponential moving average of the weights, in a folder of its own in every "
        "checkpoint",
    )
    decay: float | None = setting(
        None,
        "constant decay of the average, 0 to 1 (default: rises with the steps, by inv_gamma "
        "and power)",
        least=0,
        below=1,
    )
    update_after_step: int = setting(0, "optimiser steps before the averaging starts")
    inv_gamma: float = setting(
        1.0, "inverse gamma of the decay warm-up: a larger one rises later", above=0
    )
    power: float = setting(0.75, "power of the decay warm-up: a larger one rises faster", above=0)
    min_decay: float = setting(0.0, "minimum decay of the warm-up", least=0, below=1)
    max_decay: float = setting(0.9999, "maximum decay of the warm-up", least=0, below=1)
    use_for_eval: bool = setting(
        True, "evaluate the averaged weights during training; false: the current weights"
    )

    @property
    def is_evaluated(self) -> bool:
        """Whether evaluations use the averaged weights."""
        return self.enable and self.use_for_eval


class StartMethod(Enum):
    """Start methods of data loader processes."""

    SPAWN = "spawn"
    FORKSERVER = "forkserver"
    FORK = "fork"


@dataclass
class TrainWandbConfig(WandbConfig):
    """Weights & Biases settings of a training."""

    project: str = setting("lerobot", "W&B project")
    run_id: str | None = setting(None, "id of the W&B run to continue (default: the run folder's)")
    disable_artifact: bool = setting(False, "do not upload checkpoints as W&B artifacts")
    add_tags: bool = setting(True, "tag the W&B run with policy, seed, dataset and env")
