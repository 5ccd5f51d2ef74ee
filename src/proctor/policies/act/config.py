"""Config and plug-in of ACT, Action Chunking with Transformers (Zhao et al., 2023).

ACT predicts ``chunk_size`` actions from one observation. The network is in network.py. No torch
here: `--help` reads configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from proctor.errors import UsageError
from proctor.features import NormMode
from proctor.policies.lerobot.config.config import (
    CheckpointConfig,
    CheckpointPlugin,
    setting,
    training_setting,
)
from proctor.policies.lerobot.config.mixins import ChunkMixin
from proctor.policies.lerobot.config.presets import TrainingPreset, constant_preset
from proctor.policies.lerobot.config.shared_fields import backbone_file, normalization, shared
from proctor.policies.lerobot.fresh import make_fresh
from proctor.policies.lerobot.processors.limits import (
    LAYERS,
    MOST_WIDTH,
    WIDTH,
    Choices,
    check_divisible,
    check_one_observation,
    up_to,
)


@dataclass
class ActConfig(ChunkMixin, CheckpointConfig):
    """ACT's fields, in LeRobot's order and with LeRobot 0.6's defaults."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Observations and actions": "temporal_ensemble_coeff",
    }

    type: str = "act"
    chunk_size: int = shared("chunk_size", 100)
    n_action_steps: int = shared("n_action_steps", 100)
    normalization_mapping: dict[str, NormMode] = normalization(
        VISUAL=NormMode.MEAN_STD, STATE=NormMode.MEAN_STD, ACTION=NormMode.MEAN_STD
    )
    vision_backbone: str = shared("vision_backbone")
    pretrained_backbone_weights: str | None = shared("pretrained_backbone_weights")
    backbone_file: str | None = backbone_file()
    replace_final_stride_with_dilation: bool = setting(
        False, "replace the stride of the last ResNet stage by dilation: a larger feature map"
    )
    pre_norm: bool = setting(
        False, "apply LayerNorm before each transformer block instead of after it"
    )
    dim_model: int = setting(512, "width of the transformer", WIDTH)
    n_heads: int = setting(8, "attention heads of the transformer", WIDTH)
    dim_feedforward: int = setting(3200, "width of the feed-forward layers", up_to(4 * MOST_WIDTH))
    feedforward_activation: str = setting(
        "relu", "activation of the feed-forward layers: relu or gelu", Choices(("relu", "gelu"))
    )
    n_encoder_layers: int = setting(4, "transformer encoder layers", LAYERS)
    n_decoder_layers: int = setting(1, "transformer decoder layers", LAYERS)
    use_vae: bool = setting(True, "train as a conditional VAE; the latent is zero in evaluation")
    latent_dim: int = setting(32, "dimension of the VAE latent", WIDTH)
    n_vae_encoder_layers: int = setting(4, "layers of the VAE encoder", LAYERS)
    temporal_ensemble_coeff: float | None = setting(
        None,
        "temporal ensembling: decay of the weights, as 0.01; needs n_action_steps=1",
        default_help="no ensembling",
    )
    dropout: float = shared("dropout", 0.1)
    kl_weight: float = training_setting(10.0, "weight of the VAE's KL divergence in the loss")
    optimizer_lr: float = shared("optimizer_lr", 1e-5)
    optimizer_weight_decay: float = shared("optimizer_weight_decay", 1e-4)
    optimizer_lr_backbone: float = shared("optimizer_lr_backbone", 1e-5)

    def training_preset(self) -> TrainingPreset:
        """Return AdamW with a constant learning rate."""
        decay = self.optimizer_weight_decay
        return constant_preset("adamw", self.optimizer_lr, weight_decay=decay)

    def validate(self) -> None:
        """Check ACT's rules too: one observation, an image or environment state, chunk lengths."""
        super().validate()
        check_divisible(self, "dim_model", "n_heads")
        check_one_observation(self)
        if not self.cameras and self.env_dim is None:
            raise UsageError(
                "ACT needs a camera or observation.environment_state as input",
                code="policy.missing-input",
            )
        self.check_chunk()
        if self.temporal_ensemble_coeff is not None and self.n_action_steps != 1:
            raise UsageError(
                "temporal ensembling replans at every step; add --policy.n_action_steps=1",
                code="policy.conflict",
            )


PLUGIN = CheckpointPlugin(
    config=ActConfig,
    summary="Action Chunking with Transformers, untrained (trained: --policy.path)",
    network="proctor.policies.act.network:Act",
    prefix="model.",
    signature_fields=frozenset({"n_vae_encoder_layers", "temporal_ensemble_coeff"}),
    make=make_fresh,
)
