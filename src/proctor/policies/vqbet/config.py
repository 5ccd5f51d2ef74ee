"""Config and plug-in of VQ-BeT, Behavior Generation with Latent Actions (Lee et al., 2024).

Phase 1 of the training learns a residual VQ-VAE that encodes action chunks as codes; phase 2 learns
to predict the codes. The network is in network.py, the VQ-VAE in codes.py, the transformer in
gpt.py. No torch here: `--help` reads configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from proctor.errors import UsageError
from proctor.features import STATE, NormMode
from proctor.policies.lerobot.config.config import (
    CheckpointConfig,
    CheckpointPlugin,
    setting,
    training_setting,
)
from proctor.policies.lerobot.config.presets import (
    SampleWindows,
    ScheduleSettings,
    TrainingPreset,
    adam_settings,
)
from proctor.policies.lerobot.config.shared_fields import (
    backbone_file,
    normalization,
    optimizer_betas,
    shared,
)
from proctor.policies.lerobot.fresh import make_fresh
from proctor.policies.lerobot.processors.limits import (
    LAYERS,
    POSITIVE,
    STEPS,
    WIDTH,
    check_crop,
    check_divisible,
    up_to,
)


@dataclass
class VqBetConfig(CheckpointConfig):
    """VQ-BeT's fields, in LeRobot's order and with LeRobot 0.6's defaults."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Observations and actions": "n_action_pred_token action_chunk_size",
        "Inference": "bet_softmax_temperature",
    }

    type: str = "vqbet"
    n_obs_steps: int = shared("n_obs_steps", 5)
    n_action_pred_token: int = setting(
        3,
        "action chunks predicted from the newest observation on, each one step later",
        up_to(1000),
    )
    action_chunk_size: int = setting(
        5, "actions per chunk, executed before the next inference", up_to(1000)
    )
    normalization_mapping: dict[str, NormMode] = normalization(
        VISUAL=NormMode.IDENTITY, STATE=NormMode.MIN_MAX, ACTION=NormMode.MIN_MAX
    )
    vision_backbone: str = shared("vision_backbone")
    crop_shape: list[int] | None = shared("crop_shape", [84, 84])
    crop_is_random: bool = shared("crop_is_random")
    pretrained_backbone_weights: str | None = shared("pretrained_backbone_weights")
    backbone_file: str | None = backbone_file()
    use_group_norm: bool = shared("use_group_norm")
    spatial_softmax_num_keypoints: int = shared("spatial_softmax_num_keypoints")
    n_vqvae_training_steps: int = training_setting(
        20000, "optimiser steps of phase 1, which trains the VQ-VAE", up_to(10**9)
    )
    vqvae_n_embed: int = setting(16, "codes per codebook of the VQ-VAE", WIDTH)
    vqvae_embedding_dim: int = setting(256, "dimension of a code's embedding", WIDTH)
    vqvae_enc_hidden_dim: int = setting(128, "width of the VQ-VAE's encoder and decoder", WIDTH)
    gpt_block_size: int = setting(500, "maximum tokens of the transformer", STEPS)
    gpt_input_dim: int = setting(512, "dimension of the transformer's input tokens", WIDTH)
    gpt_output_dim: int = setting(512, "dimension of the transformer's output tokens", WIDTH)
    gpt_n_layer: int = setting(8, "layers of the transformer", LAYERS)
    gpt_n_head: int = setting(8, "attention heads of the transformer", WIDTH)
    gpt_hidden_dim: int = setting(512, "width of the transformer", WIDTH)
    dropout: float = shared("dropout", 0.1)
    offset_loss_weight: float = training_setting(10000.0, "weight of the action offset loss")
    primary_code_loss_weight: float = training_setting(5.0, "weight of the first code's loss")
    secondary_code_loss_weight: float = training_setting(0.5, "weight of the second code's loss")
    bet_softmax_temperature: float = setting(
        0.1, "softmax temperature of the code sampling", POSITIVE
    )
    sequentially_select: bool = setting(False, "predict the second code conditioned on the first")
    optimizer_lr: float = shared("optimizer_lr", 1e-4)
    optimizer_betas: list[float] = optimizer_betas(0.95, 0.999)
    optimizer_eps: float = shared("optimizer_eps")
    optimizer_weight_decay: float = shared("optimizer_weight_decay", 1e-6)
    optimizer_vqvae_lr: float = training_setting(1e-3, "learning rate of phase 1")
    optimizer_vqvae_weight_decay: float = training_setting(1e-4, "weight decay of phase 1")
    scheduler_warmup_steps: int = training_setting(
        500, "warm-up steps of the learning rate in phase 2"
    )

    @property
    def replan_steps(self) -> int:
        """Actions executed before the next inference: a whole chunk."""
        return self.action_chunk_size

    @property
    def n_chunks(self) -> int:
        """Predicted chunks: one from each observation on, and the future ones."""
        return self.n_obs_steps + self.n_action_pred_token - 1

    @property
    def encoded_size(self) -> tuple[int, int]:
        """Height and width of the image encoder's input, after the crop."""
        height, width = self.crop_shape or self.input_features[self.cameras[0]].shape[:2]
        return height, width

    def samples(self) -> SampleWindows:
        """Return the last observations, and the actions of all predicted chunks."""
        first = 1 - self.n_obs_steps
        last = self.n_action_pred_token + self.action_chunk_size - 1
        return SampleWindows(action_steps=range(first, last), observation_steps=range(first, 1))

    def training_preset(self) -> TrainingPreset:
        """Return Adam: a constant rate in phase 1, then a warm-up and a cosine decay."""
        schedule = ScheduleSettings(
            type="vqbet",
            num_warmup_steps=self.scheduler_warmup_steps,
            num_vqvae_training_steps=self.n_vqvae_training_steps,
        )
        return TrainingPreset(adam_settings(self), schedule)

    def validate(self) -> None:
        """Check VQ-BeT's rules too: one camera and the state, and a context that fits."""
        super().validate()
        if len(self.cameras) != 1 or set(self.input_features) != {STATE, self.cameras[0]}:
            raise UsageError(
                f"VQ-BeT uses one camera and {STATE}, not {', '.join(self.input_features)} "
                "(choose for training with --dataset.inputs)",
                code="policy.wrong-inputs",
            )
        check_divisible(self, "gpt_hidden_dim", "gpt_n_head")
        n_tokens = 3 * self.n_obs_steps + self.n_action_pred_token - 1
        if self.gpt_block_size < n_tokens:
            raise UsageError(
                f"gpt_block_size is {self.gpt_block_size}, fewer than the {n_tokens} tokens",
                code="policy.out-of-range",
            )
        check_crop("crop_shape", self.crop_shape, self.input_features[self.cameras[0]].shape[:2])


PLUGIN = CheckpointPlugin(
    config=VqBetConfig,
    summary="VQ-BeT, untrained (trained: --policy.path)",
    network="proctor.policies.vqbet.network:VqBet",
    prefix="vqbet.",
    signature_fields=frozenset({"n_action_pred_token", "vqvae_n_embed"}),
    make=make_fresh,
)
