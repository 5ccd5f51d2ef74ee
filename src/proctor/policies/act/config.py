"""ACT, the plug-in: its config and how it is made. The policy itself is in network.py.

Action Chunking with Transformers (Zhao et al., 2023) predicts ``chunk_size`` actions at once from
one observation. Everything about how it does that is in network.py, torch included; this file
stays light, because `--help` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from proctor.errors import UsageError
from proctor.features import Interface, NormMode
from proctor.policies.base import Policy
from proctor.policies.lerobot.config import CheckpointConfig, CheckpointPlugin, of_training
from proctor.policies.lerobot.limits import (
    MOST_LAYERS,
    MOST_STEPS,
    MOST_WIDTH,
    check_backbone,
    check_sizes,
)
from proctor.policies.lerobot.presets import OptimizerSettings, Samples, TrainingPreset

_MOST = {
    "chunk_size": MOST_STEPS,
    "dim_model": MOST_WIDTH,
    "n_heads": MOST_WIDTH,
    "dim_feedforward": 4 * MOST_WIDTH,
    "latent_dim": MOST_WIDTH,
    "n_encoder_layers": MOST_LAYERS,
    "n_decoder_layers": MOST_LAYERS,
    "n_vae_encoder_layers": MOST_LAYERS,
}


@dataclass
class ActConfig(CheckpointConfig):
    """ACT's fields as in LeRobot; the defaults are LeRobot 0.6's."""

    type: str = "act"
    chunk_size: int = field(default=100, metadata={"help": "actions predicted at once"})
    n_action_steps: int = field(
        default=100, metadata={"help": "actions played before the policy is asked again"}
    )
    normalization_mapping: dict[str, NormMode] = field(
        default_factory=lambda: {
            "VISUAL": NormMode.MEAN_STD,
            "STATE": NormMode.MEAN_STD,
            "ACTION": NormMode.MEAN_STD,
        },
        metadata=of_training("how each kind of feature is normalised, as {STATE: MEAN_STD}"),
    )
    vision_backbone: str = field(default="resnet18", metadata={"help": "resnet18 or resnet34"})
    pretrained_backbone_weights: str | None = field(
        default="ResNet18_Weights.IMAGENET1K_V1",
        metadata=of_training("null: the image encoder starts from nothing"),
    )
    replace_final_stride_with_dilation: bool = field(
        default=False, metadata={"help": "keep the last feature map large"}
    )
    pre_norm: bool = field(
        default=False, metadata={"help": "normalise before each layer instead of after"}
    )
    dim_model: int = field(default=512, metadata={"help": "width of the transformer"})
    n_heads: int = field(default=8, metadata={"help": "attention heads"})
    dim_feedforward: int = field(
        default=3200, metadata={"help": "width of the feed-forward layers"}
    )
    feedforward_activation: str = field(default="relu", metadata={"help": "relu or gelu"})
    n_encoder_layers: int = field(default=4, metadata={"help": "encoder layers"})
    n_decoder_layers: int = field(default=1, metadata={"help": "decoder layers"})
    use_vae: bool = field(default=True, metadata={"help": "has a latent (zero at rollout)"})
    latent_dim: int = field(default=32, metadata={"help": "length of the latent"})
    n_vae_encoder_layers: int = field(
        default=4, metadata={"help": "layers of the latent's encoder"}
    )
    temporal_ensemble_coeff: float | None = field(
        default=None, metadata={"help": "average overlapping chunks (needs n_action_steps 1)"}
    )
    dropout: float = field(default=0.1, metadata=of_training("share of features left out"))
    kl_weight: float = field(default=10.0, metadata=of_training("weight of the latent's loss"))
    optimizer_lr: float = field(default=1e-5, metadata=of_training("learning rate"))
    optimizer_weight_decay: float = field(default=1e-4, metadata=of_training("weight decay"))
    optimizer_lr_backbone: float = field(
        default=1e-5, metadata=of_training("learning rate of the image encoder")
    )

    def samples(self) -> Samples:
        """One observation, and the chunk of actions from there on."""
        return Samples(action_steps=range(self.chunk_size))

    def training_preset(self) -> TrainingPreset:
        """AdamW, at a constant rate."""
        optimizer = OptimizerSettings(
            type="adamw",
            lr=self.optimizer_lr,
            weight_decay=self.optimizer_weight_decay,
            grad_clip_norm=10.0,
            betas=[0.9, 0.999],
            eps=1e-8,
        )
        return TrainingPreset(optimizer)

    def validate(self) -> None:
        """Check ACT's own rules too: one observation, an input to look at, a replan interval."""
        super().validate()
        check_backbone(self)
        check_sizes(self, _MOST)
        if self.dim_model % self.n_heads:
            raise UsageError(
                f"dim_model is {self.dim_model}, no multiple of n_heads {self.n_heads}"
            )
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


def make(config: ActConfig, interface: Interface) -> Policy:
    """Make an ACT with fresh random weights for the interface's cameras and state."""
    from proctor.policies.lerobot.checkpoint import fresh_policy

    return fresh_policy(PLUGIN, config, interface)


PLUGIN = CheckpointPlugin(
    config=ActConfig,
    make=make,
    summary="Action Chunking with Transformers, untrained (trained: --policy.path)",
    network="proctor.policies.act.network:Act",
    prefix="model.",
    tell_tale=frozenset({"n_vae_encoder_layers", "temporal_ensemble_coeff"}),
)
