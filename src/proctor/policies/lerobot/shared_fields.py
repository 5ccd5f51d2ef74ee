"""Config fields that several policy families share: one help text and one set of metadata each.

A dataclass mixin cannot hold them: LeRobot's config.json has them at another place in each family,
and inherited fields come first. So each family declares the field at its place, with its default:

    chunk_size: int = chunk_size(50)

No torch here: `--help` reads configs.
"""

from __future__ import annotations

from copy import copy
from dataclasses import field
from typing import Any

from proctor.features import NormMode
from proctor.policies.lerobot.config import NOT_A_FLAG, training_field
from proctor.policies.lerobot.rtc_config import HELP as RTC_HELP


def setting(default: Any, help_text: str) -> Any:
    """Declare a field of config.json that is a flag of evaluation and training."""
    return _declared(default, {"help": help_text})


def training_setting(default: Any, help_text: str) -> Any:
    """Declare a field of config.json that is a flag of training only."""
    return _declared(default, training_field(help_text))


def unused(default: Any) -> Any:
    """Declare a field that LeRobot's config.json has and no run uses."""
    return _declared(default, NOT_A_FLAG)


def _declared(default: Any, metadata: dict[str, Any]) -> Any:
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


# Observations and action chunks


def n_obs_steps(default: int) -> Any:
    """Declare ``n_obs_steps``."""
    return setting(default, "observations the policy looks at, the newest last")


def chunk_size(default: int) -> Any:
    """Declare ``chunk_size``."""
    return setting(default, "actions predicted per inference call")


def horizon(default: int) -> Any:
    """Declare ``horizon`` of a diffusion policy."""
    return setting(default, "steps denoised at once, from the oldest observation on")


def n_action_steps(default: int) -> Any:
    """Declare ``n_action_steps``."""
    return setting(default, "actions executed before the next inference")


def drop_n_last_frames(default: int | None) -> Any:
    """Declare ``drop_n_last_frames``."""
    return training_setting(default, "frames at an episode's end that no sample starts at")


def do_mask_loss_for_padding() -> Any:
    """Declare ``do_mask_loss_for_padding``."""
    return training_setting(False, "mask actions after an episode's end in the loss")


def normalization(**modes: NormMode) -> Any:
    """Declare ``normalization_mapping`` with the mode of each feature type."""
    return training_setting(
        modes, "normalisation mode of each feature type, such as {STATE: MEAN_STD}"
    )


def max_state_dim(default: int) -> Any:
    """Declare ``max_state_dim``."""
    return setting(default, "states are zero-padded to this length")


def max_action_dim(default: int) -> Any:
    """Declare ``max_action_dim``."""
    return setting(default, "actions are zero-padded to this length")


# Image encoders


def vision_backbone() -> Any:
    """Declare ``vision_backbone``."""
    return setting("resnet18", "image encoder: resnet18 or resnet34")


def pretrained_backbone_weights() -> Any:
    """Declare ``pretrained_backbone_weights``."""
    return training_setting(
        "ResNet18_Weights.IMAGENET1K_V1",
        "pretrained weights of the image encoder; null: random initialisation",
    )


def crop_shape(default: list[int] | None) -> Any:
    """Declare the size that images are cropped to."""
    return setting(
        default, "crop images to [height,width]: the centre in evaluation; null: no crop"
    )


def crop_is_random() -> Any:
    """Declare whether training crops at random places."""
    return training_setting(True, "random crops in training")


def resize_shape() -> Any:
    """Declare the size that images are resized to before the crop."""
    return setting(None, "resize images to [height,width] before the crop")


def use_group_norm() -> Any:
    """Declare ``use_group_norm``."""
    return setting(False, "GroupNorm instead of BatchNorm in the image encoder")


def spatial_softmax_num_keypoints() -> Any:
    """Declare ``spatial_softmax_num_keypoints``."""
    return setting(32, "keypoints of the spatial softmax, per camera")


def separate_encoders(default: bool) -> Any:
    """Declare ``use_separate_rgb_encoder_per_camera``."""
    return setting(default, "a separate image encoder for each camera")


def freeze_vision_encoder(default: bool) -> Any:
    """Declare ``freeze_vision_encoder``."""
    return training_setting(default, "freeze the vision encoder")


# Language


def tokenizer_max_length(default: int) -> Any:
    """Declare ``tokenizer_max_length``."""
    return setting(default, "tokens of a prompt; longer prompts are truncated")


# Diffusion and flow matching


def noise_scheduler_type() -> Any:
    """Declare ``noise_scheduler_type``."""
    return setting("DDPM", "noise scheduler of diffusion: DDPM or DDIM")


def num_train_timesteps() -> Any:
    """Declare ``num_train_timesteps``."""
    return setting(100, "diffusion steps in training")


def beta_schedule() -> Any:
    """Declare ``beta_schedule``."""
    return setting("squaredcos_cap_v2", "squaredcos_cap_v2, linear, scaled_linear or sigmoid")


def beta_start() -> Any:
    """Declare ``beta_start``."""
    return setting(0.0001, "first beta of the linear schedules")


def beta_end() -> Any:
    """Declare ``beta_end``."""
    return setting(0.02, "last beta of the linear schedules")


def prediction_type() -> Any:
    """Declare ``prediction_type``."""
    return setting("epsilon", "prediction target of the network: epsilon or sample")


def clip_sample() -> Any:
    """Declare ``clip_sample``."""
    return setting(True, "clip denoised actions at every step")


def clip_sample_range() -> Any:
    """Declare ``clip_sample_range``."""
    return setting(1.0, "clip to plus or minus this value")


def num_inference_steps() -> Any:
    """Declare ``num_inference_steps`` of a diffusion policy."""
    return setting(None, "denoising steps (default: num_train_timesteps)")


def min_period() -> Any:
    """Declare ``min_period``."""
    return setting(4e-3, "minimum period of the sinusoidal time embedding")


def max_period() -> Any:
    """Declare ``max_period``."""
    return setting(4.0, "maximum period of the sinusoidal time embedding")


def rtc_config() -> Any:
    """Declare ``rtc_config``."""
    return setting(None, RTC_HELP)


# Optimiser and learning-rate schedule


def dropout(default: float) -> Any:
    """Declare ``dropout``."""
    return training_setting(default, "dropout probability")


def optimizer_lr(default: float) -> Any:
    """Declare ``optimizer_lr``."""
    return training_setting(default, "learning rate")


def optimizer_lr_backbone(default: float) -> Any:
    """Declare ``optimizer_lr_backbone``."""
    return training_setting(default, "learning rate of the image encoder")


def optimizer_betas(first: float, second: float) -> Any:
    """Declare ``optimizer_betas``."""
    return training_setting([first, second], "betas of Adam")


def optimizer_eps() -> Any:
    """Declare ``optimizer_eps``."""
    return training_setting(1e-8, "epsilon of Adam")


def optimizer_weight_decay(default: float) -> Any:
    """Declare ``optimizer_weight_decay``."""
    return training_setting(default, "weight decay")


def optimizer_grad_clip_norm(default: float) -> Any:
    """Declare ``optimizer_grad_clip_norm``."""
    return training_setting(default, "gradient norm above which gradients are clipped")


def scheduler_name() -> Any:
    """Declare ``scheduler_name``."""
    return training_setting("cosine", "learning-rate schedule after the warm-up")


def scheduler_warmup_steps(default: int) -> Any:
    """Declare ``scheduler_warmup_steps``."""
    return training_setting(default, "warm-up steps of the learning rate")


def scheduler_decay_steps() -> Any:
    """Declare ``scheduler_decay_steps``."""
    return training_setting(30_000, "steps until the learning rate is scheduler_decay_lr")


def scheduler_decay_lr() -> Any:
    """Declare ``scheduler_decay_lr``."""
    return training_setting(2.5e-6, "final learning rate")
