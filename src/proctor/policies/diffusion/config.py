"""Diffusion Policy, the plug-in: its config and how it is made.

The policy itself (Chi et al., 2023) is in network.py, its denoiser in unet1d.py and the
noise arithmetic in blocks/schedule.py; this file stays light, because `--help` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from proctor.errors import UsageError
from proctor.features import Interface, NormMode
from proctor.policies.base import Policy
from proctor.policies.lerobot.config import (
    NEW_IN_0_6,
    NOT_A_FLAG,
    CheckpointConfig,
    CheckpointPlugin,
    of_training,
)
from proctor.policies.lerobot.limits import (
    MOST_STEPS,
    MOST_WIDTH,
    check_backbone,
    check_choices,
    check_sides,
    check_sizes,
)
from proctor.policies.lerobot.presets import Samples, ScheduleSettings, TrainingPreset, adam_of

_MOST = {
    "horizon": MOST_STEPS,
    "down_dims": MOST_WIDTH,
    "n_groups": MOST_WIDTH,
    "kernel_size": 99,
    "diffusion_step_embed_dim": MOST_WIDTH,
    "num_train_timesteps": MOST_STEPS,
    "spatial_softmax_num_keypoints": MOST_WIDTH,
}
_CHOICES = {
    "noise_scheduler_type": ("DDPM", "DDIM"),
    "prediction_type": ("epsilon", "sample"),
    "beta_schedule": ("squaredcos_cap_v2", "linear", "scaled_linear", "sigmoid"),
}


@dataclass
class DiffusionConfig(CheckpointConfig):
    """Diffusion Policy's fields as in LeRobot; the defaults are LeRobot 0.6's."""

    type: str = "diffusion"
    n_obs_steps: int = field(
        default=2, metadata={"help": "observations it looks at, the newest last"}
    )
    horizon: int = field(default=64, metadata={"help": "steps denoised at once"})
    n_action_steps: int = field(
        default=32, metadata={"help": "actions played before the policy is asked again"}
    )
    normalization_mapping: dict[str, NormMode] = field(
        default_factory=lambda: {
            "VISUAL": NormMode.MEAN_STD,
            "STATE": NormMode.MIN_MAX,
            "ACTION": NormMode.MIN_MAX,
        },
        metadata=of_training("how each kind of feature is normalised, as {STATE: MIN_MAX}"),
    )
    drop_n_last_frames: int = field(
        default=7, metadata=of_training("frames at an episode's end that no sample begins at")
    )
    vision_backbone: str = field(default="resnet18", metadata={"help": "resnet18 or resnet34"})
    resize_shape: list[int] | None = field(
        default=None, metadata={"help": "resize images to [height,width] first"}
    )
    crop_ratio: float = field(
        default=1.0, metadata={"help": "with resize_shape: the share that is cropped"}
    )
    crop_shape: list[int] | None = field(
        default=None, metadata={"help": "crop images to [height,width], the centre at rollout"}
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
    spatial_softmax_num_keypoints: int = field(
        default=32, metadata={"help": "keypoints per camera"}
    )
    use_separate_rgb_encoder_per_camera: bool = field(
        default=True, metadata={"help": "an image encoder of its own for each camera"}
    )
    down_dims: list[int] = field(
        default_factory=lambda: [512, 1024, 2048],
        metadata={"help": "channels of the U-Net, level by level"},
    )
    kernel_size: int = field(default=5, metadata={"help": "width of the U-Net's kernels"})
    n_groups: int = field(default=8, metadata={"help": "groups of the U-Net's normalisation"})
    diffusion_step_embed_dim: int = field(
        default=128, metadata={"help": "length of the time embedding"}
    )
    use_film_scale_modulation: bool = field(
        default=True, metadata={"help": "the condition scales features, not only shifts them"}
    )
    gradient_checkpointing: bool = field(default=False, metadata=NEW_IN_0_6 | NOT_A_FLAG)
    noise_scheduler_type: str = field(default="DDPM", metadata={"help": "DDPM or DDIM"})
    num_train_timesteps: int = field(default=100, metadata={"help": "denoising steps in training"})
    beta_schedule: str = field(
        default="squaredcos_cap_v2",
        metadata={"help": "squaredcos_cap_v2, linear, scaled_linear or sigmoid"},
    )
    beta_start: float = field(
        default=0.0001, metadata={"help": "first beta of the linear schedules"}
    )
    beta_end: float = field(default=0.02, metadata={"help": "last beta of the linear schedules"})
    prediction_type: str = field(
        default="epsilon", metadata={"help": "what the network predicts: epsilon or sample"}
    )
    clip_sample: bool = field(default=True, metadata={"help": "clip what is denoised"})
    clip_sample_range: float = field(default=1.0, metadata={"help": "to plus or minus this"})
    num_inference_steps: int | None = field(
        default=None, metadata={"help": "denoising steps (default: all of the training's)"}
    )
    compile_model: bool = field(default=False, metadata=NOT_A_FLAG)
    compile_mode: str = field(default="reduce-overhead", metadata=NOT_A_FLAG)
    do_mask_loss_for_padding: bool = field(
        default=False, metadata=of_training("leave actions after an episode's end out of the loss")
    )
    optimizer_lr: float = field(default=1e-4, metadata=of_training("learning rate"))
    optimizer_betas: list[float] = field(
        default_factory=lambda: [0.95, 0.999], metadata=of_training("betas of Adam")
    )
    optimizer_eps: float = field(default=1e-8, metadata=of_training("epsilon of Adam"))
    optimizer_weight_decay: float = field(default=1e-6, metadata=of_training("weight decay"))
    scheduler_name: str = field(
        default="cosine", metadata=of_training("the learning rate after the warm-up")
    )
    scheduler_warmup_steps: int = field(
        default=500, metadata=of_training("steps of rising learning rate")
    )

    def __post_init__(self) -> None:
        """A resize brings its own crop, as a ratio; LeRobot stores the result, and so do we."""
        if self.resize_shape is not None:
            crop = [int(side * self.crop_ratio) for side in self.resize_shape]
            self.crop_shape = crop if self.crop_ratio < 1 else None

    @property
    def encoded_size(self) -> tuple[int, int]:
        """Height and width of what the image encoder sees, after resize and crop."""
        shape = self.input_features[self.cameras[0]].shape
        height, width = self.crop_shape or self.resize_shape or shape[:2]
        return height, width

    def samples(self) -> Samples:
        """The last observations, and a horizon of actions that begins with the oldest of them."""
        first = 1 - self.n_obs_steps
        return Samples(
            action_steps=range(first, first + self.horizon),
            observation_steps=range(first, 1),
            drop_last=self.drop_n_last_frames,
        )

    def training_preset(self) -> TrainingPreset:
        """Adam, and a cosine after a warm-up."""
        schedule = ScheduleSettings(
            type="diffuser",
            num_warmup_steps=self.scheduler_warmup_steps,
            name=self.scheduler_name,
        )
        return TrainingPreset(adam_of(self), schedule)

    def validate(self) -> None:
        """Check Diffusion's own rules too: names of schedules, chunk arithmetic, camera shapes."""
        super().validate()
        check_backbone(self)
        check_sizes(self, _MOST)
        self._validate_widths()
        check_choices(self, _CHOICES)
        self._validate_lengths()
        self._validate_inputs()

    def _validate_widths(self) -> None:
        if not 1 <= len(self.down_dims) <= 8:
            raise UsageError(f"down_dims are {self.down_dims}, expected 1 to 8 of them")
        for width in self.down_dims:
            if width % self.n_groups:
                raise UsageError(f"down_dims are {self.down_dims}, no multiples of {self.n_groups}")
        if self.kernel_size % 2 == 0:
            raise UsageError(f"kernel_size is {self.kernel_size}, expected an odd number")
        if not 0 < self.crop_ratio <= 1:
            raise UsageError(f"crop_ratio is {self.crop_ratio:g} (choose above 0, up to 1)")
        if self.diffusion_step_embed_dim < 4 or self.diffusion_step_embed_dim % 2:
            raise UsageError(
                f"diffusion_step_embed_dim is {self.diffusion_step_embed_dim}, expected an even "
                "number of at least 4"
            )

    def _validate_lengths(self) -> None:
        factor = 2 ** len(self.down_dims)
        if self.horizon % factor:
            raise UsageError(
                f"horizon is {self.horizon}; {len(self.down_dims)} down_dims need a multiple of "
                f"{factor}"
            )
        longest = self.horizon - self.n_obs_steps + 1
        if not 1 <= self.n_action_steps <= longest:
            raise UsageError(
                f"n_action_steps is {self.n_action_steps} (choose 1-{longest}: horizon "
                f"{self.horizon} less the {self.n_obs_steps - 1} past steps)"
            )
        steps = self.num_inference_steps
        if steps is not None and not 1 <= steps <= self.num_train_timesteps:
            raise UsageError(
                f"num_inference_steps is {steps} (choose 1-{self.num_train_timesteps})"
            )

    def _validate_inputs(self) -> None:
        if self.state_dim is None:
            raise UsageError("Diffusion needs observation.state as input")
        if not self.cameras and self.env_dim is None:
            raise UsageError("Diffusion needs a camera or observation.environment_state as input")
        shapes = {self.input_features[key].shape for key in self.cameras}
        if len(shapes) > 1:
            raise UsageError(f"Diffusion's cameras differ in shape: {sorted(shapes)}")
        check_sides(self, "resize_shape", "crop_shape")
        crop = self.crop_shape
        if crop is not None and shapes:
            height, width = self.resize_shape or next(iter(shapes))[:2]
            if crop[0] > height or crop[1] > width:
                raise UsageError(f"crop {crop} is larger than the {height}x{width} image")


def make(config: DiffusionConfig, interface: Interface) -> Policy:
    """Make a Diffusion Policy with fresh random weights for the interface's cameras and state."""
    from proctor.policies.lerobot.checkpoint import fresh_policy

    return fresh_policy(PLUGIN, config, interface)


PLUGIN = CheckpointPlugin(
    config=DiffusionConfig,
    make=make,
    summary="Diffusion Policy, untrained (trained: --policy.path)",
    network="proctor.policies.diffusion.network:Diffusion",
    prefix="diffusion.",
    tell_tale=frozenset({"noise_scheduler_type", "use_film_scale_modulation"}),
)
