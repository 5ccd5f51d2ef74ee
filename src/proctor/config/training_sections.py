"""The sections of a training's settings: its dataset, device, averages, loaders, W&B."""

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
    """Which demonstrations are learnt from."""

    repo_id: str = field(default="", metadata={"help": "the dataset: its Hub id, as user/name"})
    root: Path | None = field(default=None, metadata={"help": "the folder it lies in"})
    revision: str | None = field(default=None, metadata={"help": "branch, tag or commit"})
    episodes: list[int] | None = field(default=None, metadata={"help": "only these, as [0,3]"})
    exclude_episodes: list[int] | None = field(default=None, metadata={"help": "all but these"})
    inputs: list[str] | None = field(
        default=None,
        metadata={
            "help": "what a new policy looks at (default: cameras and states, all there are)"
        },
    )
    image_size: list[int] | None = field(
        default=None,
        metadata={
            "help": "[height,width] that pictures are scaled to as they are decoded, and that the "
            "policy looks at (default: as they are)"
        },
    )
    use_imagenet_stats: bool = field(
        default=True, metadata={"help": "normalise pictures by ImageNet's mean and deviation"}
    )
    image_transforms: ImageTransformSettings = field(default_factory=ImageTransformSettings)
    streaming: bool = field(
        default=False,
        metadata={"help": "fetch files from the Hub while training, and keep none of them"},
    )
    balance_tasks: bool = field(
        default=False,
        metadata={"help": "frames of every task come equally often, however many it has"},
    )
    eval_split: float = field(
        default=0.0, metadata={"help": "share of each task's episodes held out for --eval_steps"}
    )

    @property
    def name(self) -> str:
        """What it is called: its Hub id, or its folder."""
        return self.repo_id or str(self.root)

    @property
    def size(self) -> tuple[int, int] | None:
        """``image_size``, as a pair."""
        if self.image_size is None:
            return None
        height, width = self.image_size
        return height, width


class Precision(Enum):
    """What a network computes in; weights are float32 always."""

    NO = "no"
    BF16 = "bf16"


@dataclass
class AccumulationSettings:
    """Several batches for one update."""

    steps: int = field(default=1, metadata={"help": "batches whose gradients make one update"})


@dataclass
class CompileSettings:
    """Whether the network is compiled (torch.compile)."""

    enabled: bool = field(default=False, metadata={"help": "compile the network"})
    backend: str = field(
        default="inductor", metadata={"help": "inductor, or to find a fault aot_eager, eager"}
    )
    mode: str | None = field(
        default=None,
        metadata={"help": "reduce-overhead, max-autotune, max-autotune-no-cudagraphs"},
    )
    regional: bool = field(
        default=True,
        metadata={"help": "the network's hot parts, each by itself; false: its whole loss"},
    )

    def validate(self) -> None:
        """Refuse what torch has not.

        Raises:
            UsageError: naming the flag.
        """
        known = {
            "backend": ("inductor", "aot_eager", "eager"),
            "mode": (None, "default", "reduce-overhead", "max-autotune", _NO_GRAPHS),
        }
        for name, values in known.items():
            if getattr(self, name) not in values:
                told = ", ".join(str(value) for value in values if value)
                raise UsageError(
                    f"--accelerator.compile.{name} is {getattr(self, name)!r} (choose {told})",
                    code="flag.invalid-value",
                )


_NO_GRAPHS = "max-autotune-no-cudagraphs"


@dataclass
class ParallelismSettings:
    """How several processes (torchrun) share a training."""

    dp_replicate: int = field(
        default=1, metadata={"help": "copies of the weights (1: as many as dp_shard leaves)"}
    )
    dp_shard: int = field(
        default=1, metadata={"help": "processes that the weights are spread over (FSDP2)"}
    )


@dataclass
class AcceleratorSettings:
    """How the device is used."""

    mixed_precision: Precision = field(
        default=Precision.NO, metadata={"help": "no: float32 (TF32 on CUDA); bf16: autocast"}
    )
    gradient_accumulation: AccumulationSettings = field(default_factory=AccumulationSettings)
    compile: CompileSettings = field(default_factory=CompileSettings)
    cuda_graph: bool | None = field(
        default=None,
        metadata={"help": "forward and backward as one CUDA graph (default: where it can be)"},
    )


@dataclass
class EmaSettings:
    """Whether and how weights are averaged over the steps."""

    enable: bool = field(
        default=False, metadata={"help": "also keep an average of the weights, in its own folder"}
    )
    decay: float | None = field(
        default=None, metadata={"help": "share of the old average (default: rises with the steps)"}
    )
    update_after_step: int = field(default=0, metadata={"help": "updates before it averages"})
    inv_gamma: float = field(default=1.0, metadata={"help": "how late the decay rises"})
    power: float = field(default=0.75, metadata={"help": "how fast the decay rises"})
    min_decay: float = field(default=0.0, metadata={"help": "lowest decay"})
    max_decay: float = field(default=0.9999, metadata={"help": "highest decay"})
    use_for_eval: bool = field(
        default=True, metadata={"help": "evaluations while training play the average"}
    )

    @property
    def played(self) -> bool:
        """Whether evaluations play the average."""
        return self.enable and self.use_for_eval

    def validate(self) -> None:
        """Refuse numbers that give no average.

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
    """How loader processes come to be."""

    SPAWN = "spawn"
    FORKSERVER = "forkserver"
    FORK = "fork"


@dataclass
class TrainWandbConfig(WandbConfig):
    """Whether and where a training is logged to Weights & Biases."""

    project: str = field(default="lerobot", metadata={"help": "the W&B project"})
    run_id: str | None = field(
        default=None, metadata={"help": "W&B's run to go on with (default: the folder's own)"}
    )
    disable_artifact: bool = field(
        default=False, metadata={"help": "do not upload the weights of checkpoints"}
    )
    add_tags: bool = field(
        default=True, metadata={"help": "tag the run with policy, seed, dataset and env"}
    )
