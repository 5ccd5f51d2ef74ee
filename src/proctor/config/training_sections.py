"""Sections of the training config: dataset, accelerator, parallelism, EMA and W&B."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from proctor.callbacks.wandb import WandbConfig
from proctor.config.image_transforms import ImageTransformSettings
from proctor.datasets.cache_settings import FrameCacheSettings
from proctor.errors import UsageError


@dataclass
class TrainDatasetSettings(FrameCacheSettings):
    """The training dataset (--dataset.*)."""

    repo_id: str = field(default="", metadata={"help": "id of the dataset on the Hub: user/name"})
    root: Path | None = field(
        default=None, metadata={"help": "folder of the dataset (default: $HF_LEROBOT_HOME/REPO_ID)"}
    )
    revision: str | None = field(
        default=None, metadata={"help": "branch, tag or commit on the Hub (default: v3.0)"}
    )
    episodes: list[int] | None = field(
        default=None, metadata={"help": "episodes to train on, as [0,3] (default: all)"}
    )
    exclude_episodes: list[int] | None = field(
        default=None, metadata={"help": "episodes to leave out (default: none)"}
    )
    inputs: list[str] | None = field(
        default=None,
        metadata={"help": "input features of a new policy (default: all cameras and states)"},
    )
    image_size: list[int] | None = field(
        default=None,
        metadata={
            "help": "resize images to [height,width] pixels when they are decoded; the policy's "
            "input size (default: as recorded)"
        },
    )
    use_imagenet_stats: bool = field(
        default=True,
        metadata={"help": "normalise images by ImageNet's mean and standard deviation"},
    )
    image_transforms: ImageTransformSettings = field(default_factory=ImageTransformSettings)
    streaming: bool = field(
        default=False,
        metadata={"help": "stream files from the Hub during training, without storing them"},
    )
    balance_tasks: bool = field(
        default=False,
        metadata={"help": "sample all tasks equally often, whatever their number of frames"},
    )
    eval_split: float = field(
        default=0.0,
        metadata={
            "help": "share of each task's episodes used for validation (--eval_steps), 0 to 1"
        },
    )

    @property
    def name(self) -> str:
        """The dataset's Hub id, or its folder."""
        return self.repo_id or str(self.root)

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

    steps: int = field(
        default=1, metadata={"help": "batches whose gradients are accumulated for one update"}
    )


@dataclass
class CompileSettings:
    """Settings of torch.compile."""

    enabled: bool = field(
        default=False, metadata={"help": "compile the network with torch.compile"}
    )
    backend: str = field(
        default="inductor",
        metadata={"help": "compiler backend: inductor; for debugging aot_eager or eager"},
    )
    mode: str | None = field(
        default=None,
        metadata={
            "help": "reduce-overhead, max-autotune or max-autotune-no-cudagraphs (default: torch's)"
        },
    )
    regional: bool = field(
        default=True,
        metadata={"help": "compile repeated blocks separately; false: the whole loss function"},
    )

    def validate(self) -> None:
        """Refuse backends and modes that torch lacks.

        Raises:
            UsageError: naming the flag.
        """
        known = {
            "backend": ("inductor", "aot_eager", "eager"),
            "mode": (None, "default", "reduce-overhead", "max-autotune", _NO_GRAPHS),
        }
        for name, values in known.items():
            if getattr(self, name) not in values:
                choices = ", ".join(str(value) for value in values if value)
                raise UsageError(
                    f"--accelerator.compile.{name} is {getattr(self, name)!r} (choose {choices})",
                    code="flag.invalid-value",
                )


_NO_GRAPHS = "max-autotune-no-cudagraphs"


@dataclass
class ParallelismSettings:
    """How processes (torchrun) share a training."""

    dp_replicate: int = field(
        default=1,
        metadata={"help": "data-parallel replicas of the weights; 1: as many as dp_shard leaves"},
    )
    dp_shard: int = field(
        default=1, metadata={"help": "processes that share one copy of the weights (FSDP2)"}
    )


@dataclass
class AcceleratorSettings:
    """How the accelerator is used."""

    mixed_precision: Precision = field(
        default=Precision.NO,
        metadata={"help": "no: float32 (TF32 on CUDA); bf16: autocast to bfloat16"},
    )
    gradient_accumulation: AccumulationSettings = field(default_factory=AccumulationSettings)
    compile: CompileSettings = field(default_factory=CompileSettings)
    cuda_graph: bool | None = field(
        default=None,
        metadata={
            "help": "capture forward and backward pass in one CUDA graph (default: where possible)"
        },
    )


@dataclass
class EmaSettings:
    """Exponential moving average (EMA) of the weights."""

    enable: bool = field(
        default=False,
        metadata={
            "help": "also keep an exponential moving average of the weights, in its own folder"
        },
    )
    decay: float | None = field(
        default=None,
        metadata={"help": "decay of the average, 0 to 1 (default: rises with the steps)"},
    )
    update_after_step: int = field(default=0, metadata={"help": "updates before averaging starts"})
    inv_gamma: float = field(
        default=1.0, metadata={"help": "inverse gamma of the decay warm-up: larger rises later"}
    )
    power: float = field(
        default=0.75, metadata={"help": "power of the decay warm-up: larger rises faster"}
    )
    min_decay: float = field(default=0.0, metadata={"help": "lowest decay"})
    max_decay: float = field(default=0.9999, metadata={"help": "highest decay"})
    use_for_eval: bool = field(
        default=True, metadata={"help": "evaluate the averaged weights during training"}
    )

    @property
    def is_evaluated(self) -> bool:
        """Whether evaluations use the averaged weights."""
        return self.enable and self.use_for_eval

    def validate(self) -> None:
        """Refuse numbers that do not define an average.

        Raises:
            UsageError: naming the flag.
        """
        shares = {"decay": self.decay, "min_decay": self.min_decay, "max_decay": self.max_decay}
        for name, value in shares.items():
            if value is not None and not 0 <= value < 1:
                raise UsageError(
                    f"--ema.{name} must be from 0 to below 1, got {value:g}",
                    code="flag.out-of-range",
                )
        if self.inv_gamma <= 0 or self.power <= 0:
            raise UsageError(
                "--ema.inv_gamma and --ema.power must be above 0", code="flag.out-of-range"
            )


class StartMethod(Enum):
    """Start methods of data loader processes."""

    SPAWN = "spawn"
    FORKSERVER = "forkserver"
    FORK = "fork"


@dataclass
class TrainWandbConfig(WandbConfig):
    """Weights & Biases settings of a training."""

    project: str = field(default="lerobot", metadata={"help": "the W&B project"})
    run_id: str | None = field(
        default=None,
        metadata={"help": "id of the W&B run to continue (default: that of the folder)"},
    )
    disable_artifact: bool = field(
        default=False, metadata={"help": "do not upload checkpoints as artifacts"}
    )
    add_tags: bool = field(
        default=True, metadata={"help": "tag the run with policy, seed, dataset and env"}
    )
