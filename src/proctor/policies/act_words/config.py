"""ACT that is told its task in words, the plug-in: its config and how it is made.

One policy for many tasks: scenes are shared, so pictures alone do not say what to do. The network
is in network.py; this file stays light, because `--help` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from proctor.errors import UsageError
from proctor.features import Array, Interface, NormMode
from proctor.policies.act.config import ActConfig
from proctor.policies.act_words.words import word_pieces
from proctor.policies.base import Policy
from proctor.policies.lerobot.config import CheckpointPlugin, of_training
from proctor.policies.lerobot.feature_json import channels_first
from proctor.policies.lerobot.presets import OptimizerSettings, ScheduleSettings, TrainingPreset

WORDS = "words"
"""What the network sees of an instruction, among its inputs."""
_MOST_SHIFT = 64


@dataclass
class ActWordsConfig(ActConfig):
    """ACT's fields, with defaults for many tasks from nothing, and how it hears and looks."""

    type: str = "act_words"
    chunk_size: int = field(default=20, metadata={"help": "actions predicted at once"})
    n_action_steps: int = field(
        default=10, metadata={"help": "actions played before the policy is asked again"}
    )
    normalization_mapping: dict[str, NormMode] = field(
        default_factory=lambda: {
            "VISUAL": NormMode.MEAN_STD,
            "STATE": NormMode.MEAN_STD,
            "ENV": NormMode.MEAN_STD,
            "ACTION": NormMode.MEAN_STD,
        },
        metadata=of_training("how each kind of feature is normalised, as {STATE: MEAN_STD}"),
    )
    pretrained_backbone_weights: str | None = field(
        default=None, metadata=of_training("null: its image encoder always starts from nothing")
    )
    replace_final_stride_with_dilation: bool = field(
        default=True, metadata={"help": "keep the last feature map large"}
    )
    dim_model: int = field(default=256, metadata={"help": "width of the transformer"})
    dim_feedforward: int = field(
        default=1024, metadata={"help": "width of the feed-forward layers"}
    )
    n_decoder_layers: int = field(default=3, metadata={"help": "decoder layers"})
    use_vae: bool = field(default=False, metadata={"help": "has a latent (zero at rollout)"})
    dropout: float = field(default=0.05, metadata=of_training("share of features left out"))
    optimizer_lr: float = field(default=5e-4, metadata=of_training("learning rate"))
    optimizer_weight_decay: float = field(default=1e-3, metadata=of_training("weight decay"))
    optimizer_lr_backbone: float = field(
        default=5e-4, metadata=of_training("learning rate of the image encoder")
    )
    scheduler_warmup_steps: int = field(
        default=300, metadata=of_training("steps of rising rate; then it falls as a cosine")
    )
    crop: list[int] | None = field(
        default=None,
        metadata={"help": "the part of a picture that is looked at: [top, left, height, width]"},
    )
    random_shift: int = field(
        default=4, metadata=of_training("pixels that pictures are moved by at most, at random")
    )
    state_noise: float = field(
        default=0.02, metadata=of_training("deviation of noise on the normalised state")
    )
    word_dropout: float = field(
        default=0.1, metadata=of_training("share of an instruction's words that are not heard")
    )

    def read(self, instruction: str) -> dict[str, Array]:
        """Return the pieces of its words."""
        return {WORDS: word_pieces(instruction)}

    def training_preset(self) -> TrainingPreset:
        """AdamW, its rate rising and then falling as a cosine."""
        optimizer = OptimizerSettings(
            type="adamw",
            lr=self.optimizer_lr,
            weight_decay=self.optimizer_weight_decay,
            grad_clip_norm=5.0,
            betas=[0.9, 0.999],
            eps=1e-8,
        )
        schedule = ScheduleSettings(
            type="diffuser", num_warmup_steps=self.scheduler_warmup_steps, name="cosine"
        )
        return TrainingPreset(optimizer, schedule)

    def validate(self) -> None:
        """Check what it has beside ACT."""
        super().validate()
        if self.pretrained_backbone_weights is not None:
            raise UsageError("act_words's image encoder has no pretrained weights (say null)")
        if not 0 <= self.random_shift <= _MOST_SHIFT:
            raise UsageError(f"random_shift is {self.random_shift} (choose 0-{_MOST_SHIFT})")
        if self.crop is not None:
            self._check_crop(self.crop)
        if self.state_noise < 0:
            raise UsageError(f"state_noise is {self.state_noise:g} (choose 0 or more)")
        if not 0 <= self.word_dropout < 1:
            raise UsageError(f"word_dropout is {self.word_dropout:g} (choose from 0 to below 1)")
        if self.scheduler_warmup_steps < 0:
            raise UsageError(f"scheduler_warmup_steps is {self.scheduler_warmup_steps}")

    def _check_crop(self, crop: list[int]) -> None:
        if len(crop) != 4 or min(crop[:2]) < 0 or min(crop[2:]) < 1:
            raise UsageError(f"crop is {crop}, expected [top, left, height, width]")
        for key in self.cameras:
            _, height, width = channels_first(self.input_features[key])
            if crop[0] + crop[2] > height or crop[1] + crop[3] > width:
                raise UsageError(f"crop {crop} leads out of {key}, which is {height}x{width}")


def make(config: ActWordsConfig, interface: Interface) -> Policy:
    """Make one with fresh random weights for the interface's cameras and state."""
    from proctor.policies.lerobot.checkpoint import fresh_policy

    return fresh_policy(PLUGIN, config, interface)


PLUGIN = CheckpointPlugin(
    config=ActWordsConfig,
    make=make,
    summary="ACT that is told its task in words, untrained (trained: --policy.path)",
    network="proctor.policies.act_words.network:ActWords",
    prefix="model.",
    tell_tale=frozenset({"n_vae_encoder_layers", "word_dropout"}),
)
