"""ACT, the plug-in: its config and how it is made. The policy itself is in act_model.py.

Action Chunking with Transformers (Zhao et al., 2023) predicts ``chunk_size`` actions at once from
one observation. Everything about how it does that is in act_model.py, torch included; this file
stays light, because `--help` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from proctor.benchmarks.base import Benchmark
from proctor.errors import UsageError
from proctor.policies.base import Policy
from proctor.policies.config import CheckpointConfig, CheckpointPlugin, NormMode, check_backbone

if TYPE_CHECKING:
    from proctor.policies.network import Network


@dataclass
class ActConfig(CheckpointConfig):
    """ACT's fields as in LeRobot; the defaults are LeRobot 0.6's."""

    type: str = "act"
    chunk_size: int = 100
    n_action_steps: int = field(
        default=100, metadata={"help": "actions played before the policy is asked again"}
    )
    normalization_mapping: dict[str, NormMode] = field(
        default_factory=lambda: {
            "VISUAL": NormMode.MEAN_STD,
            "STATE": NormMode.MEAN_STD,
            "ACTION": NormMode.MEAN_STD,
        }
    )
    vision_backbone: str = "resnet18"
    pretrained_backbone_weights: str | None = "ResNet18_Weights.IMAGENET1K_V1"
    replace_final_stride_with_dilation: bool = False
    pre_norm: bool = False
    dim_model: int = 512
    n_heads: int = 8
    dim_feedforward: int = 3200
    feedforward_activation: str = "relu"
    n_encoder_layers: int = 4
    n_decoder_layers: int = 1
    use_vae: bool = True
    latent_dim: int = 32
    n_vae_encoder_layers: int = 4
    temporal_ensemble_coeff: float | None = field(
        default=None, metadata={"help": "average overlapping chunks (needs n_action_steps 1)"}
    )
    dropout: float = 0.1
    kl_weight: float = 10.0
    optimizer_lr: float = 1e-5
    optimizer_weight_decay: float = 1e-4
    optimizer_lr_backbone: float = 1e-5

    def validate(self) -> None:
        """Check ACT's own rules too: one observation, an input to look at, a replan interval."""
        super().validate()
        check_backbone(self)
        if self.n_obs_steps != 1:
            raise UsageError(f"ACT looks at one observation; n_obs_steps is {self.n_obs_steps}")
        if not self.cameras and self.env_dim is None:
            raise UsageError("ACT needs a camera or observation.environment_state as input")
        if not 1 <= self.n_action_steps <= self.chunk_size:
            raise UsageError(
                f"n_action_steps is {self.n_action_steps} (choose 1-{self.chunk_size}, the chunk)"
            )
        if self.temporal_ensemble_coeff is not None and self.n_action_steps != 1:
            raise UsageError(
                "temporal ensembling replans at every step; add --policy.n_action_steps=1"
            )
        if self.feedforward_activation not in ("relu", "gelu"):
            raise UsageError(
                f"feedforward_activation is {self.feedforward_activation!r} (choose relu, gelu)"
            )


def network(config: ActConfig) -> Network:
    """Build the network, on torch's current default device."""
    from proctor.policies.act_model import Act

    return Act(config)


def make(config: ActConfig, benchmark: Benchmark) -> Policy:
    """Make an ACT with fresh random weights for the benchmark's cameras and state."""
    from proctor.policies.checkpoint import fresh_policy

    return fresh_policy(PLUGIN, config, benchmark)


PLUGIN = CheckpointPlugin(
    config=ActConfig,
    make=make,
    summary="Action Chunking with Transformers, untrained (trained: --policy.path)",
    network=network,
    prefix="model.",
    tell_tale=frozenset({"n_vae_encoder_layers", "temporal_ensemble_coeff"}),
)
