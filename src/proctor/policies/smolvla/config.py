"""SmolVLA, the plug-in: its config and how it is made. The policy itself is in network.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from proctor.definition import Use
from proctor.errors import UsageError
from proctor.features import Interface, NormMode
from proctor.policies.base import Policy
from proctor.policies.lerobot.any_size import in_sizes_of
from proctor.policies.lerobot.config import (
    NOT_A_FLAG,
    CheckpointConfig,
    CheckpointPlugin,
    of_training,
)
from proctor.policies.lerobot.limits import MOST_PIXELS, MOST_STEPS, check_sizes
from proctor.policies.lerobot.presets import Samples, TrainingPreset, cosine_preset
from proctor.policies.lerobot.rtc_config import HELP as RTC_HELP
from proctor.policies.lerobot.rtc_config import read_rtc
from proctor.policies.smolvla.vlm import SMOLVLM2

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors import UsualSteps
    from proctor.policies.lerobot.step import Step

ALOHA_JOINTS = 14
_MOST = {
    "chunk_size": MOST_STEPS,
    "max_state_dim": 1024,
    "max_action_dim": 1024,
    "tokenizer_max_length": 4096,
    "num_steps": 1000,
}
_MODES = ("cross_attn", "self_attn")


@dataclass
class SmolVlaConfig(CheckpointConfig):
    """SmolVLA's fields as in LeRobot; the defaults are LeRobot 0.6's."""

    type: str = "smolvla"
    chunk_size: int = field(default=50, metadata={"help": "actions predicted at once"})
    n_action_steps: int = field(
        default=50, metadata={"help": "actions played before the policy is asked again"}
    )
    normalization_mapping: dict[str, NormMode] = field(
        default_factory=lambda: {
            "VISUAL": NormMode.IDENTITY,
            "STATE": NormMode.MEAN_STD,
            "ACTION": NormMode.MEAN_STD,
        },
        metadata=of_training("how each kind of feature is normalised, as {STATE: MEAN_STD}"),
    )
    max_state_dim: int = field(default=32, metadata={"help": "states are filled up to this"})
    max_action_dim: int = field(default=32, metadata={"help": "actions are filled up to this"})
    resize_imgs_with_padding: list[int] | None = field(
        default_factory=lambda: [512, 512],
        metadata={"help": "width and height that images are fitted into"},
    )
    empty_cameras: int = field(default=0, metadata=NOT_A_FLAG)
    adapt_to_pi_aloha: bool = field(
        default=False, metadata={"help": "turn ALOHA's joints as the base model knows them"}
    )
    use_delta_joint_actions_aloha: bool = field(default=False, metadata=NOT_A_FLAG)
    tokenizer_max_length: int = field(
        default=48, metadata={"help": "tokens of an instruction; what is longer is cut"}
    )
    num_steps: int = field(default=10, metadata={"help": "denoising steps"})
    use_cache: bool = field(default=True, metadata=NOT_A_FLAG)
    freeze_vision_encoder: bool = field(
        default=True, metadata=of_training("leave the image encoder as it is")
    )
    train_expert_only: bool = field(
        default=True, metadata=of_training("leave the vision-language model as it is")
    )
    train_state_proj: bool = field(
        default=True, metadata=of_training("learn how states become tokens")
    )
    optimizer_lr: float = field(default=1e-4, metadata=of_training("learning rate"))
    optimizer_betas: list[float] = field(
        default_factory=lambda: [0.9, 0.95], metadata=of_training("betas of AdamW")
    )
    optimizer_eps: float = field(default=1e-8, metadata=of_training("epsilon of AdamW"))
    optimizer_weight_decay: float = field(default=1e-10, metadata=of_training("weight decay"))
    optimizer_grad_clip_norm: float = field(
        default=10.0, metadata=of_training("gradients are scaled down to this norm")
    )
    scheduler_warmup_steps: int = field(
        default=1000, metadata=of_training("steps of rising learning rate")
    )
    scheduler_decay_steps: int = field(
        default=30_000, metadata=of_training("steps until the last learning rate")
    )
    scheduler_decay_lr: float = field(default=2.5e-6, metadata=of_training("last learning rate"))
    vlm_model_name: str = field(
        default=SMOLVLM2,
        metadata={"help": "its vision-language model: a folder, or an id on the Hub"},
    )
    load_vlm_weights: bool = field(
        default=False, metadata=of_training("begin with that model's weights, not with none")
    )
    add_image_special_tokens: bool = field(default=False, metadata=NOT_A_FLAG)
    attention_mode: str = field(
        default="cross_attn", metadata={"help": "how the expert looks: cross_attn or self_attn"}
    )
    prefix_length: int = field(default=-1, metadata=NOT_A_FLAG)
    pad_language_to: str = field(
        default="longest", metadata={"help": "as LeRobot's; a new policy's words have one length"}
    )
    num_expert_layers: int = field(
        default=-1, metadata={"help": "layers of the expert; -1: as many as num_vlm_layers"}
    )
    num_vlm_layers: int = field(
        default=16, metadata={"help": "layers of the language model that are used; -1: all"}
    )
    self_attn_every_n_layers: int = field(
        default=2, metadata={"help": "of the layers of cross_attn, which are joint all the same"}
    )
    expert_width_multiplier: float = field(
        default=0.75, metadata={"help": "width of the expert, in that of the language model"}
    )
    min_period: float = field(default=4e-3, metadata={"help": "shortest wave that tells the time"})
    max_period: float = field(default=4.0, metadata={"help": "longest wave that does"})
    rtc_config: dict[str, Any] | None = field(default=None, metadata={"help": RTC_HELP})
    compile_model: bool = field(default=False, metadata=NOT_A_FLAG)
    compile_mode: str = field(default="max-autotune", metadata=NOT_A_FLAG)

    def made_for(self, interface: Interface, renames: Mapping[str, str], use: Use) -> Self:
        """Take pictures of any size, and to be trained, states and actions too."""
        return in_sizes_of(interface, self, renames, use)

    @property
    def recalls(self) -> bool:
        """It does where what is left of a chunk leads the next."""
        return read_rtc(self.rtc_config) is not None

    @property
    def is_told(self) -> bool:
        """It is, in tokens."""
        return True

    def processing(self, usual: UsualSteps) -> tuple[Sequence[Step], Sequence[Step]]:
        """The usual steps, and those that make tokens of words."""
        from proctor.policies.lerobot.language import NewLine, Tokenize

        tokens = Tokenize(
            max_length=self.tokenizer_max_length,
            padding=self.pad_language_to,
            tokenizer_name=self.vlm_model_name,
        )
        before = usual.rename, usual.to_batch, NewLine(), tokens, usual.to_device, usual.normalize
        return before, (usual.unnormalize, usual.to_cpu)

    def samples(self) -> Samples:
        """One observation, and the chunk of actions from there on."""
        return Samples(action_steps=range(self.chunk_size))

    def training_preset(self) -> TrainingPreset:
        """AdamW, its rate rising and then falling as a cosine."""
        return cosine_preset(self)

    def validate(self) -> None:
        """Check SmolVLA's own rules too: what it needs to see, sizes, and what it cannot do."""
        super().validate()
        check_sizes(self, _MOST)
        read_rtc(self.rtc_config)
        if self.n_obs_steps != 1:
            raise UsageError(f"SmolVLA looks at one observation; n_obs_steps is {self.n_obs_steps}")
        if not 1 <= self.n_action_steps <= self.chunk_size:
            raise UsageError(
                f"n_action_steps is {self.n_action_steps} (choose 1-{self.chunk_size}, the chunk)"
            )
        if self.state_dim is None or not self.cameras:
            raise UsageError("SmolVLA needs a camera and observation.state as input")
        if self.state_dim > self.max_state_dim or self.action_dim > self.max_action_dim:
            raise UsageError(
                f"state {self.state_dim} and action {self.action_dim} must fit into max_state_dim "
                f"{self.max_state_dim} and max_action_dim {self.max_action_dim}"
            )
        self._validate_images()
        self._validate_layers()
        if self.adapt_to_pi_aloha and (self.state_dim, self.action_dim) != (ALOHA_JOINTS,) * 2:
            raise UsageError(
                f"adapt_to_pi_aloha is for ALOHA's {ALOHA_JOINTS} joints; state and action have "
                f"{self.state_dim} and {self.action_dim}"
            )
        for name in ("use_delta_joint_actions_aloha", "add_image_special_tokens"):
            if getattr(self, name):
                raise UsageError(f"{name} is set, which is not known here")

    def _validate_images(self) -> None:
        sides = self.resize_imgs_with_padding
        if sides is not None and (len(sides) != 2 or not all(0 < n <= MOST_PIXELS for n in sides)):
            raise UsageError(f"resize_imgs_with_padding is {sides}, expected [width, height]")

    def _validate_layers(self) -> None:
        if self.attention_mode not in _MODES:
            raise UsageError(
                f"attention_mode is {self.attention_mode!r} (choose {', '.join(_MODES)})"
            )
        if not 0 < self.expert_width_multiplier <= 4:
            raise UsageError(
                f"expert_width_multiplier is {self.expert_width_multiplier:g} (above 0, up to 4)"
            )
        if not 0 < self.min_period < self.max_period:
            raise UsageError(
                f"periods from {self.min_period:g} to {self.max_period:g} are no range above 0"
            )


def make(config: SmolVlaConfig, interface: Interface) -> Policy:
    """Make a SmolVLA with fresh random weights for the interface's cameras and state."""
    from proctor.policies.lerobot.checkpoint import fresh_policy

    return fresh_policy(PLUGIN, config, interface)


PLUGIN = CheckpointPlugin(
    config=SmolVlaConfig,
    make=make,
    summary="SmolVLA, untrained (trained: --policy.path)",
    network="proctor.policies.smolvla.network:SmolVla",
    prefix="model.",
    tell_tale=frozenset({"vlm_model_name", "expert_width_multiplier"}),
)
