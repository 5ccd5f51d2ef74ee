"""VQ-BeT, the plug-in: its config and how it is made.

Behavior Generation with Latent Actions (Lee et al., 2024) turns stretches of actions into codes, in
a first phase of its training, and then learns to predict the codes. The policy itself is in
network.py, the codes in codes.py, the transformer in gpt.py; this file stays light, because
`--help` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from proctor.errors import UsageError
from proctor.features import STATE, Interface, NormMode
from proctor.policies.base import Policy
from proctor.policies.lerobot.config import CheckpointConfig, CheckpointPlugin, of_training
from proctor.policies.lerobot.limits import (
    MOST_LAYERS,
    MOST_PIXELS,
    MOST_STEPS,
    MOST_WIDTH,
    check_backbone,
    check_sizes,
)
from proctor.policies.lerobot.presets import Samples, ScheduleSettings, TrainingPreset, adam_of

_MOST = {
    "n_action_pred_token": 1000,
    "action_chunk_size": 1000,
    "spatial_softmax_num_keypoints": MOST_WIDTH,
    "vqvae_n_embed": MOST_WIDTH,
    "vqvae_embedding_dim": MOST_WIDTH,
    "vqvae_enc_hidden_dim": MOST_WIDTH,
    "gpt_block_size": MOST_STEPS,
    "gpt_input_dim": MOST_WIDTH,
    "gpt_output_dim": MOST_WIDTH,
    "gpt_n_layer": MOST_LAYERS,
    "gpt_n_head": MOST_WIDTH,
    "gpt_hidden_dim": MOST_WIDTH,
    "n_vqvae_training_steps": 10**9,
}


@dataclass
class VqBetConfig(CheckpointConfig):
    """VQ-BeT's fields as in LeRobot; the defaults are LeRobot 0.6's."""

    type: str = "vqbet"
    n_obs_steps: int = field(
        default=5, metadata={"help": "observations it looks at, the newest last"}
    )
    n_action_pred_token: int = field(
        default=3, metadata={"help": "stretches predicted from now on, each a step later"}
    )
    action_chunk_size: int = field(
        default=5, metadata={"help": "actions of a stretch, played before it is asked again"}
    )
    normalization_mapping: dict[str, NormMode] = field(
        default_factory=lambda: {
            "VISUAL": NormMode.IDENTITY,
            "STATE": NormMode.MIN_MAX,
            "ACTION": NormMode.MIN_MAX,
        },
        metadata=of_training("how each kind of feature is normalised, as {STATE: MIN_MAX}"),
    )
    vision_backbone: str = field(default="resnet18", metadata={"help": "resnet18 or resnet34"})
    crop_shape: list[int] | None = field(
        default_factory=lambda: [84, 84],
        metadata={"help": "crop images to [height,width], the centre at rollout; null: not"},
    )
    crop_is_random: bool = field(
        default=True, metadata=of_training("crop anywhere, each sample elsewhere")
    )
    pretrained_backbone_weights: str | None = field(
        default="ResNet18_Weights.IMAGENET1K_V1",
        metadata=of_training("null: the image encoder starts from nothing"),
    )
    use_group_norm: bool = field(
        default=False,
        metadata={"help": "group instead of batch normalisation in the image encoder"},
    )
    spatial_softmax_num_keypoints: int = field(default=32, metadata={"help": "keypoints"})
    n_vqvae_training_steps: int = field(
        default=20000, metadata=of_training("steps of the first phase, which learns the codes")
    )
    vqvae_n_embed: int = field(default=16, metadata={"help": "codes, in each of two layers"})
    vqvae_embedding_dim: int = field(default=256, metadata={"help": "length of a code's vector"})
    vqvae_enc_hidden_dim: int = field(
        default=128, metadata={"help": "width of what codes are made and read by"}
    )
    gpt_block_size: int = field(default=500, metadata={"help": "most tokens of the transformer"})
    gpt_input_dim: int = field(default=512, metadata={"help": "length of its tokens"})
    gpt_output_dim: int = field(default=512, metadata={"help": "length of what it gives"})
    gpt_n_layer: int = field(default=8, metadata={"help": "its layers"})
    gpt_n_head: int = field(default=8, metadata={"help": "its attention heads"})
    gpt_hidden_dim: int = field(default=512, metadata={"help": "its width"})
    dropout: float = field(default=0.1, metadata=of_training("share of features left out"))
    offset_loss_weight: float = field(
        default=10000.0, metadata=of_training("weight of the actions' loss")
    )
    primary_code_loss_weight: float = field(
        default=5.0, metadata=of_training("weight of the first code's loss")
    )
    secondary_code_loss_weight: float = field(
        default=0.5, metadata=of_training("weight of the second code's loss")
    )
    bet_softmax_temperature: float = field(
        default=0.1, metadata={"help": "how freely codes are drawn"}
    )
    sequentially_select: bool = field(
        default=False, metadata={"help": "the second code is predicted knowing the first"}
    )
    optimizer_lr: float = field(default=1e-4, metadata=of_training("learning rate"))
    optimizer_betas: list[float] = field(
        default_factory=lambda: [0.95, 0.999], metadata=of_training("betas of Adam")
    )
    optimizer_eps: float = field(default=1e-8, metadata=of_training("epsilon of Adam"))
    optimizer_weight_decay: float = field(default=1e-6, metadata=of_training("weight decay"))
    optimizer_vqvae_lr: float = field(
        default=1e-3, metadata=of_training("learning rate of the first phase")
    )
    optimizer_vqvae_weight_decay: float = field(
        default=1e-4, metadata=of_training("weight decay of the first phase")
    )
    scheduler_warmup_steps: int = field(
        default=500, metadata=of_training("steps of rising learning rate in the second phase")
    )

    @property
    def replan_steps(self) -> int:
        """A whole stretch is played."""
        return self.action_chunk_size

    @property
    def n_stretches(self) -> int:
        """Stretches that are predicted: one from each observation on, and those still to come."""
        return self.n_obs_steps + self.n_action_pred_token - 1

    @property
    def encoded_size(self) -> tuple[int, int]:
        """Height and width of what the image encoder sees, after the crop."""
        height, width = self.crop_shape or self.input_features[self.cameras[0]].shape[:2]
        return height, width

    def samples(self) -> Samples:
        """The last observations, and the actions of all stretches."""
        first = 1 - self.n_obs_steps
        last = self.n_action_pred_token + self.action_chunk_size - 1
        return Samples(action_steps=range(first, last), observation_steps=range(first, 1))

    def training_preset(self) -> TrainingPreset:
        """Adam; a constant rate for the codes, then a cosine after a warm-up."""
        schedule = ScheduleSettings(
            type="vqbet",
            num_warmup_steps=self.scheduler_warmup_steps,
            num_vqvae_training_steps=self.n_vqvae_training_steps,
        )
        return TrainingPreset(adam_of(self), schedule)

    def validate(self) -> None:
        """Check VQ-BeT's own rules too: one camera and the state, and a transformer that fits."""
        super().validate()
        check_backbone(self)
        check_sizes(self, _MOST)
        if len(self.cameras) != 1 or set(self.input_features) != {STATE, self.cameras[0]}:
            raise UsageError(
                f"VQ-BeT looks at one camera and {STATE}, not at {', '.join(self.input_features)} "
                "(a training chooses with --dataset.inputs)"
            )
        if self.gpt_hidden_dim % self.gpt_n_head:
            raise UsageError(
                f"gpt_hidden_dim is {self.gpt_hidden_dim}, no multiple of gpt_n_head "
                f"{self.gpt_n_head}"
            )
        n_tokens = 3 * self.n_obs_steps + self.n_action_pred_token - 1
        if self.gpt_block_size < n_tokens:
            raise UsageError(f"gpt_block_size is {self.gpt_block_size}, and there are {n_tokens}")
        if not self.bet_softmax_temperature > 0:
            raise UsageError(f"bet_softmax_temperature is {self.bet_softmax_temperature}, not > 0")
        self._validate_crop()

    def _validate_crop(self) -> None:
        crop, (height, width) = self.crop_shape, self.input_features[self.cameras[0]].shape[:2]
        if crop is None:
            return
        if len(crop) != 2 or min(crop) < 1 or max(crop) > MOST_PIXELS:
            raise UsageError(f"crop_shape is {crop}, expected [height, width]")
        if crop[0] > height or crop[1] > width:
            raise UsageError(f"crop_shape {crop} is larger than the {height}x{width} image")


def make(config: VqBetConfig, interface: Interface) -> Policy:
    """Make a VQ-BeT with fresh random weights for the interface's camera and state."""
    from proctor.policies.lerobot.checkpoint import fresh_policy

    return fresh_policy(PLUGIN, config, interface)


PLUGIN = CheckpointPlugin(
    config=VqBetConfig,
    make=make,
    summary="VQ-BeT, untrained (trained: --policy.path)",
    network="proctor.policies.vqbet.network:VqBet",
    prefix="vqbet.",
    tell_tale=frozenset({"n_action_pred_token", "vqvae_n_embed"}),
)
