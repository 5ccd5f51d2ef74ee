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
from proctor.fingerprint import LOCAL_PATH, PRESENTATION
from proctor.policies.lerobot.config import NOT_A_FLAG, run_flag, training_field
from proctor.policies.lerobot.rtc_config import HELP as RTC_HELP


def setting(default: Any, help_text: str, default_help: str = "") -> Any:
    """Declare a field of config.json that is a flag of evaluation and training."""
    return _declared(default, {"help": help_text, "default_help": default_help})


def training_setting(default: Any, help_text: str, default_help: str = "") -> Any:
    """Declare a field of config.json that is a flag of training only."""
    return _declared(default, training_field(help_text, default_help))


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
    return setting(default, "observation steps given to the policy, the newest last")


def chunk_size(default: int) -> Any:
    """Declare ``chunk_size``."""
    return setting(default, "actions predicted per inference call")


def horizon(default: int) -> Any:
    """Declare ``horizon`` of a diffusion policy."""
    return setting(
        default, "steps of the denoised action sequence, starting at the oldest observation"
    )


def n_action_steps(default: int) -> Any:
    """Declare ``n_action_steps``."""
    return setting(default, "actions executed before the next inference")


def drop_n_last_frames(default: int | None) -> Any:
    """Declare ``drop_n_last_frames``."""
    return training_setting(
        default,
        "last frames of every episode at which no training sample starts",
        "" if default is not None else "horizon - n_action_steps - n_obs_steps + 1",
    )


def do_mask_loss_for_padding() -> Any:
    """Declare ``do_mask_loss_for_padding``."""
    return training_setting(
        False, "exclude padded actions (after the end of an episode) from the loss"
    )


def normalization(**modes: NormMode) -> Any:
    """Declare ``normalization_mapping`` with the mode of each feature type."""
    return training_setting(
        modes,
        "normalisation mode by feature type: IDENTITY, MEAN_STD, MIN_MAX, QUANTILES or QUANTILE10",
    )


def max_state_dim(default: int) -> Any:
    """Declare ``max_state_dim``."""
    return setting(default, "length that states are zero-padded to")


def max_action_dim(default: int) -> Any:
    """Declare ``max_action_dim``."""
    return setting(default, "length that actions are zero-padded to")


# Image encoders


def vision_backbone() -> Any:
    """Declare ``vision_backbone``."""
    return setting("resnet18", "image encoder: resnet18 or resnet34")


def pretrained_backbone_weights() -> Any:
    """Declare ``pretrained_backbone_weights``."""
    return training_setting(
        "ResNet18_Weights.IMAGENET1K_V1",
        "ImageNet weights of the image encoder, downloaded once; none: random initialisation",
    )


def backbone_file() -> Any:
    """Declare ``backbone_file``, which config.json does not have."""
    text, usual = "local file of the ImageNet weights (.pth, .safetensors)", "downloaded"
    flag = training_field(text, default_help=usual) | run_flag(text, default_help=usual)
    return _declared(None, flag | PRESENTATION | LOCAL_PATH)


def crop_shape(default: list[int] | None) -> Any:
    """Declare the size that images are cropped to."""
    return setting(
        default,
        "crop images to [height,width] pixels, at the centre in evaluation; none: no crop",
        "no crop" if default is None else "",
    )


def crop_is_random() -> Any:
    """Declare whether training crops at random places."""
    return training_setting(True, "crop at random positions in training; false: at the centre")


def resize_shape() -> Any:
    """Declare the size that images are resized to before the crop."""
    return setting(
        None, "resize images to [height,width] pixels before the crop", default_help="no resizing"
    )


def use_group_norm() -> Any:
    """Declare ``use_group_norm``."""
    return setting(False, "replace BatchNorm by GroupNorm in the image encoder")


def spatial_softmax_num_keypoints() -> Any:
    """Declare ``spatial_softmax_num_keypoints``."""
    return setting(32, "keypoints of the spatial softmax, per camera")


def separate_encoders(default: bool) -> Any:
    """Declare ``use_separate_rgb_encoder_per_camera``."""
    return setting(default, "use a separate image encoder for each camera")


def freeze_vision_encoder(default: bool) -> Any:
    """Declare ``freeze_vision_encoder``."""
    return training_setting(
        default,
        "freeze the vision encoder",
        "horizon - n_action_steps - n_obs_steps + 1" if default is None else "",
    )


# Language


def tokenizer_max_length(default: int) -> Any:
    """Declare ``tokenizer_max_length``."""
    return setting(default, "maximum tokens of a prompt; longer prompts are truncated")


# Diffusion and flow matching


def noise_scheduler_type() -> Any:
    """Declare ``noise_scheduler_type``."""
    return setting("DDPM", "noise scheduler: DDPM or DDIM")


def num_train_timesteps() -> Any:
    """Declare ``num_train_timesteps``."""
    return setting(100, "diffusion steps in training")


def beta_schedule() -> Any:
    """Declare ``beta_schedule``."""
    return setting(
        "squaredcos_cap_v2", "noise schedule: squaredcos_cap_v2, linear, scaled_linear or sigmoid"
    )


def beta_start() -> Any:
    """Declare ``beta_start``."""
    return setting(0.0001, "first beta of the noise schedule (squaredcos_cap_v2 ignores it)")


def beta_end() -> Any:
    """Declare ``beta_end``."""
    return setting(0.02, "last beta of the noise schedule (squaredcos_cap_v2 ignores it)")


def prediction_type() -> Any:
    """Declare ``prediction_type``."""
    return setting("epsilon", "prediction target of the network: epsilon or sample")


def clip_sample() -> Any:
    """Declare ``clip_sample``."""
    return setting(True, "clip the denoised sample at every denoising step")


def clip_sample_range() -> Any:
    """Declare ``clip_sample_range``."""
    return setting(1.0, "with clip_sample: largest absolute value of the sample")


def num_inference_steps() -> Any:
    """Declare ``num_inference_steps`` of a diffusion policy."""
    return setting(None, "denoising steps per inference", default_help="num_train_timesteps")


def min_period() -> Any:
    """Declare ``min_period``."""
    return setting(4e-3, "minimum period of the sinusoidal time embedding")


def max_period() -> Any:
    """Declare ``max_period``."""
    return setting(4.0, "maximum period of the sinusoidal time embedding")


def rtc_config() -> Any:
    """Declare ``rtc_config``."""
    return setting(None, RTC_HELP, "off")


# Optimiser and learning-rate schedule


def dropout(default: float) -> Any:
    """Declare ``dropout``."""
    return training_setting(default, "dropout probability")


def optimizer_lr(default: float) -> Any:
    """Declare ``optimizer_lr``."""
    return training_setting(default, "learning rate of the optimiser")


def optimizer_lr_backbone(default: float) -> Any:
    """Declare ``optimizer_lr_backbone``."""
    return training_setting(default, "learning rate of the image encoder")


def optimizer_betas(first: float, second: float) -> Any:
    """Declare ``optimizer_betas``."""
    return training_setting([first, second], "betas of the Adam optimiser")


def optimizer_eps() -> Any:
    """Declare ``optimizer_eps``."""
    return training_setting(1e-8, "epsilon of the Adam optimiser")


def optimizer_weight_decay(default: float) -> Any:
    """Declare ``optimizer_weight_decay``."""
    return training_setting(default, "weight decay of the optimiser")


def optimizer_grad_clip_norm(default: float) -> Any:
    """Declare ``optimizer_grad_clip_norm``."""
    return training_setting(default, "maximum gradient norm (gradient clipping)")


def scheduler_name() -> Any:
    """Declare ``scheduler_name``."""
    return training_setting(
        "cosine", "learning-rate schedule after the warm-up: cosine, linear or constant_with_warmup"
    )


def scheduler_warmup_steps(default: int) -> Any:
    """Declare ``scheduler_warmup_steps``."""
    return training_setting(default, "warm-up steps of the learning rate")


def scheduler_decay_steps() -> Any:
    """Declare ``scheduler_decay_steps``."""
    return training_setting(30_000, "steps until the learning rate reaches scheduler_decay_lr")


def scheduler_decay_lr() -> Any:
    """Declare ``scheduler_decay_lr``."""
    return training_setting(2.5e-6, "final learning rate")
