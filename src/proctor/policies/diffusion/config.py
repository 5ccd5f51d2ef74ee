"""Config and plug-in of Diffusion Policy (Chi et al., 2023).

The network is in network.py, its U-Net in unet1d.py and the noise schedule in blocks/schedule.py.
No torch here: `--help` reads configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from proctor.errors import UsageError
from proctor.features import NormMode
from proctor.policies.lerobot.config.config import (
    NEW_IN_0_6,
    NOT_A_FLAG,
    CheckpointConfig,
    CheckpointPlugin,
    setting,
    unused,
)
from proctor.policies.lerobot.config.mixins import DenoisingMixin
from proctor.policies.lerobot.config.shared_fields import (
    backbone_file,
    normalization,
    optimizer_betas,
    shared,
)
from proctor.policies.lerobot.fresh import make_fresh
from proctor.policies.lerobot.processors.limits import (
    WIDTH,
    Limits,
    check_crop,
    check_embedding_width,
    check_same_shape,
    require_inputs,
    up_to,
)


@dataclass
class DiffusionConfig(DenoisingMixin, CheckpointConfig):
    """Diffusion Policy's fields, in LeRobot's order and with LeRobot 0.6's defaults."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Images": "crop_ratio",
    }

    type: str = "diffusion"
    n_obs_steps: int = shared("n_obs_steps", 2)
    horizon: int = shared("horizon", 64)
    n_action_steps: int = shared("n_action_steps", 32)
    normalization_mapping: dict[str, NormMode] = normalization(
        VISUAL=NormMode.MEAN_STD, STATE=NormMode.MIN_MAX, ACTION=NormMode.MIN_MAX
    )
    drop_n_last_frames: int = shared("drop_n_last_frames", 7)
    vision_backbone: str = shared("vision_backbone")
    resize_shape: list[int] | None = shared("resize_shape")
    crop_ratio: float = setting(
        1.0,
        "with resize_shape: ratio of the crop's side to the image's side, above 0 to 1",
        Limits(0, 1, above=True),
    )
    crop_shape: list[int] | None = shared("crop_shape", None)
    crop_is_random: bool = shared("crop_is_random")
    pretrained_backbone_weights: str | None = shared("pretrained_backbone_weights")
    backbone_file: str | None = backbone_file()
    use_group_norm: bool = shared("use_group_norm")
    spatial_softmax_num_keypoints: int = shared("spatial_softmax_num_keypoints")
    use_separate_rgb_encoder_per_camera: bool = shared("separate_encoders", True)
    down_dims: list[int] = setting([512, 1024, 2048], "channels of each level of the U-Net", WIDTH)
    kernel_size: int = setting(5, "kernel size of the U-Net's convolutions", up_to(99))
    n_groups: int = setting(8, "groups of the U-Net's GroupNorm", WIDTH)
    diffusion_step_embed_dim: int = setting(128, "dimension of the timestep embedding", WIDTH)
    use_film_scale_modulation: bool = setting(
        True, "FiLM conditioning scales features; false: only shifts them"
    )
    gradient_checkpointing: bool = field(default=False, metadata=NEW_IN_0_6 | NOT_A_FLAG)
    noise_scheduler_type: str = shared("noise_scheduler_type")
    num_train_timesteps: int = shared("num_train_timesteps")
    beta_schedule: str = shared("beta_schedule")
    beta_start: float = shared("beta_start")
    beta_end: float = shared("beta_end")
    prediction_type: str = shared("prediction_type")
    clip_sample: bool = shared("clip_sample")
    clip_sample_range: float = shared("clip_sample_range")
    num_inference_steps: int | None = shared("num_inference_steps")
    compile_model: bool = unused(False)
    compile_mode: str = unused("reduce-overhead")
    do_mask_loss_for_padding: bool = shared("do_mask_loss_for_padding")
    optimizer_lr: float = shared("optimizer_lr", 1e-4)
    optimizer_betas: list[float] = optimizer_betas(0.95, 0.999)
    optimizer_eps: float = shared("optimizer_eps")
    optimizer_weight_decay: float = shared("optimizer_weight_decay", 1e-6)
    scheduler_name: str = shared("scheduler_name")
    scheduler_warmup_steps: int = shared("scheduler_warmup_steps", 500)

    def __post_init__(self) -> None:
        """Compute ``crop_shape`` from ``resize_shape`` and ``crop_ratio``, as LeRobot stores it."""
        if self.resize_shape is not None:
            crop = [int(side * self.crop_ratio) for side in self.resize_shape]
            self.crop_shape = crop if self.crop_ratio < 1 else None

    @property
    def encoded_size(self) -> tuple[int, int]:
        """Height and width of the image encoder's input, after resize and crop."""
        shape = self.input_features[self.cameras[0]].shape
        height, width = self.crop_shape or self.resize_shape or shape[:2]
        return height, width

    def validate(self) -> None:
        """Check Diffusion's rules too: schedule names, lengths, image sizes."""
        super().validate()
        self._validate_widths()
        self._validate_lengths()
        self._validate_inputs()

    def _validate_widths(self) -> None:
        if not 1 <= len(self.down_dims) <= 8:
            raise UsageError(
                f"down_dims are {self.down_dims}, expected 1 to 8 of them",
                code="policy.out-of-range",
            )
        for width in self.down_dims:
            if width % self.n_groups:
                raise UsageError(
                    f"down_dims are {self.down_dims}, no multiples of {self.n_groups}",
                    code="policy.not-divisible",
                )
        if self.kernel_size % 2 == 0:
            raise UsageError(
                f"kernel_size is {self.kernel_size}, expected an odd number",
                code="policy.out-of-range",
            )
        check_embedding_width(self, "diffusion_step_embed_dim")

    def _validate_lengths(self) -> None:
        factor = 2 ** len(self.down_dims)
        if self.horizon % factor:
            raise UsageError(
                f"horizon is {self.horizon}; {len(self.down_dims)} down_dims need a multiple of "
                f"{factor}",
                code="policy.not-divisible",
            )
        self.check_lengths()

    def _validate_inputs(self) -> None:
        require_inputs(self, state=True)
        if not self.cameras and self.env_dim is None:
            raise UsageError(
                "Diffusion needs a camera or observation.environment_state as input",
                code="policy.missing-input",
            )
        check_same_shape("Diffusion", self.input_features, self.cameras)
        if self.cameras:
            image = self.resize_shape or self.input_features[self.cameras[0]].shape[:2]
            check_crop("crop_shape", self.crop_shape, image)


PLUGIN = CheckpointPlugin(
    config=DiffusionConfig,
    summary="Diffusion Policy, untrained (trained: --policy.path)",
    network="proctor.policies.diffusion.network:Diffusion",
    prefix="diffusion.",
    signature_fields=frozenset({"noise_scheduler_type", "use_film_scale_modulation"}),
    make=make_fresh,
)
