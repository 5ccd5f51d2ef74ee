"""Diffusion Policy, the plug-in: its config and how it is made.

The policy itself (Chi et al., 2023) is in diffusion_model.py, its denoiser in unet1d.py and the
noise arithmetic in noise_schedule.py; this file stays light, because `--help` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from proctor.benchmarks.base import Benchmark
from proctor.errors import UsageError
from proctor.policies.base import Policy
from proctor.policies.config import (
    NEW_IN_0_6,
    CheckpointConfig,
    CheckpointPlugin,
    NormMode,
    check_backbone,
)

if TYPE_CHECKING:
    from proctor.policies.network import Network


@dataclass
class DiffusionConfig(CheckpointConfig):
    """Diffusion Policy's fields as in LeRobot; the defaults are LeRobot 0.6's."""

    type: str = "diffusion"
    n_obs_steps: int = 2
    horizon: int = 64
    n_action_steps: int = field(
        default=32, metadata={"help": "actions played before the policy is asked again"}
    )
    normalization_mapping: dict[str, NormMode] = field(
        default_factory=lambda: {
            "VISUAL": NormMode.MEAN_STD,
            "STATE": NormMode.MIN_MAX,
            "ACTION": NormMode.MIN_MAX,
        }
    )
    drop_n_last_frames: int = 7
    vision_backbone: str = "resnet18"
    resize_shape: list[int] | None = None
    crop_ratio: float = 1.0
    crop_shape: list[int] | None = None
    crop_is_random: bool = True
    pretrained_backbone_weights: str | None = "ResNet18_Weights.IMAGENET1K_V1"
    use_group_norm: bool = False
    spatial_softmax_num_keypoints: int = 32
    use_separate_rgb_encoder_per_camera: bool = True
    down_dims: list[int] = field(default_factory=lambda: [512, 1024, 2048])
    kernel_size: int = 5
    n_groups: int = 8
    diffusion_step_embed_dim: int = 128
    use_film_scale_modulation: bool = True
    gradient_checkpointing: bool = field(default=False, metadata=NEW_IN_0_6)
    noise_scheduler_type: str = field(default="DDPM", metadata={"help": "DDPM or DDIM"})
    num_train_timesteps: int = 100
    beta_schedule: str = "squaredcos_cap_v2"
    beta_start: float = 0.0001
    beta_end: float = 0.02
    prediction_type: str = "epsilon"
    clip_sample: bool = True
    clip_sample_range: float = 1.0
    num_inference_steps: int | None = field(
        default=None, metadata={"help": "denoising steps (default: all of the training's)"}
    )
    compile_model: bool = False
    compile_mode: str = "reduce-overhead"
    do_mask_loss_for_padding: bool = False
    optimizer_lr: float = 1e-4
    optimizer_betas: list[float] = field(default_factory=lambda: [0.95, 0.999])
    optimizer_eps: float = 1e-8
    optimizer_weight_decay: float = 1e-6
    scheduler_name: str = "cosine"
    scheduler_warmup_steps: int = 500

    def __post_init__(self) -> None:
        """A resize brings its own crop, as a ratio; LeRobot stores the result, and so do we."""
        if self.resize_shape is not None:
            crop = [int(side * self.crop_ratio) for side in self.resize_shape]
            self.crop_shape = crop if self.crop_ratio < 1 else None

    @property
    def encoded_size(self) -> tuple[int, int]:
        """Height and width of what the image encoder sees, after resize and crop."""
        shape = self.input_features[self.cameras[0]].shape
        height, width = self.crop_shape or self.resize_shape or shape[1:]
        return height, width

    def validate(self) -> None:
        """Check Diffusion's own rules too: names of schedules, chunk arithmetic, camera shapes."""
        super().validate()
        check_backbone(self)
        _choose("noise_scheduler_type", self.noise_scheduler_type, ("DDPM", "DDIM"))
        _choose("prediction_type", self.prediction_type, ("epsilon", "sample"))
        schedules = ("squaredcos_cap_v2", "linear", "scaled_linear", "sigmoid")
        _choose("beta_schedule", self.beta_schedule, schedules)
        self._validate_lengths()
        self._validate_inputs()

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
        for name, sides in (("resize_shape", self.resize_shape), ("crop_shape", self.crop_shape)):
            if sides is not None and (len(sides) != 2 or min(sides) < 1):
                raise UsageError(f"{name} is {sides}, expected [height, width]")
        crop = self.crop_shape
        if crop is not None and shapes:
            height, width = self.resize_shape or next(iter(shapes))[1:]
            if crop[0] > height or crop[1] > width:
                raise UsageError(f"crop {crop} is larger than the {height}x{width} image")


def _choose(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name} is {value!r} (choose {', '.join(known)})")


def network(config: DiffusionConfig) -> Network:
    """Build the network, on torch's current default device."""
    from proctor.policies.diffusion_model import Diffusion

    return Diffusion(config)


def make(config: DiffusionConfig, benchmark: Benchmark) -> Policy:
    """Make a Diffusion Policy with fresh random weights for the benchmark's cameras and state."""
    from proctor.policies.checkpoint import fresh_policy

    return fresh_policy(PLUGIN, config, benchmark)


PLUGIN = CheckpointPlugin(
    config=DiffusionConfig,
    make=make,
    summary="Diffusion Policy, untrained (trained: --policy.path)",
    network=network,
    prefix="diffusion.",
    tell_tale=frozenset({"noise_scheduler_type", "use_film_scale_modulation"}),
)
