"""Config fields that several policy families share: one help text and one set of metadata each.

A dataclass mixin cannot hold them: LeRobot's config.json has them at another place in each family,
and inherited fields come first. So each family declares the field at its place, with its default:

    chunk_size: int = shared("chunk_size", 50)

No torch here: `--help` reads configs.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from proctor.features import NormMode
from proctor.fingerprint import LOCAL_PATH, PRESENTATION
from proctor.policies.lerobot.config.config import (
    run_flag,
    setting,
    training_field,
    training_setting,
)
from proctor.policies.lerobot.config.mixins import RTC_HELP
from proctor.policies.lerobot.processors.limits import (
    MOST_PROMPT,
    STEPS,
    WIDTH,
    Allowed,
    Choices,
    Sides,
    up_to,
)

_SETTINGS = {
    "chunk_size": "actions predicted per inference call",
    "horizon": "steps of the denoised action sequence, starting at the oldest observation",
    "n_action_steps": "actions executed before the next inference",
    "n_obs_steps": "observation steps given to the policy, the newest last",
    "max_state_dim": "length that states are zero-padded to",
    "max_action_dim": "length that actions are zero-padded to",
    "vision_backbone": "image encoder: resnet18 or resnet34",
    "crop_shape": (
        "crop images to [height,width] pixels, at the centre in evaluation; none: no crop"
    ),
    "resize_shape": "resize images to [height,width] pixels before the crop",
    "use_group_norm": "replace BatchNorm by GroupNorm in the image encoder",
    "spatial_softmax_num_keypoints": "keypoints of the spatial softmax, per camera",
    "separate_encoders": "use a separate image encoder for each camera",
    "tokenizer_max_length": "maximum tokens of a prompt; longer prompts are truncated",
    "embodiment_tag": "embodiment: the kind of robot, with weights of its own",
    "use_bf16": "compute in bfloat16 (torch.autocast) with float32 weights",
    "noise_scheduler_type": "noise scheduler: DDPM or DDIM",
    "num_train_timesteps": "diffusion steps in training",
    "beta_schedule": ("noise schedule: squaredcos_cap_v2, linear, scaled_linear or sigmoid"),
    "beta_start": "first beta of the noise schedule (squaredcos_cap_v2 ignores it)",
    "beta_end": "last beta of the noise schedule (squaredcos_cap_v2 ignores it)",
    "prediction_type": "prediction target of the network: epsilon or sample",
    "clip_sample": "clip the denoised sample at every denoising step",
    "clip_sample_range": "with clip_sample: largest absolute value of the sample",
    "num_inference_steps": "denoising steps per inference",
    "min_period": "minimum period of the sinusoidal time embedding",
    "max_period": "maximum period of the sinusoidal time embedding",
    "rtc_config": RTC_HELP,
}
_TRAINING = {
    "drop_n_last_frames": "last frames of every episode at which no training sample starts",
    "do_mask_loss_for_padding": (
        "exclude padded actions (after the end of an episode) from the loss"
    ),
    "pretrained_backbone_weights": (
        "ImageNet weights of the image encoder, downloaded once; none: random initialisation"
    ),
    "crop_is_random": "crop at random positions in training; false: at the centre",
    "freeze_vision_encoder": "freeze the vision encoder",
    "train_expert_only": "freeze the vision-language model; train the action expert only",
    "tune_llm": "train the language model",
    "tune_visual": "train the vision encoder",
    "tune_projector": "train the encoders of states and actions and the decoder of actions",
    "tune_diffusion_model": "train the diffusion transformer",
    "dropout": "dropout probability",
    "optimizer_lr": "learning rate of the optimiser",
    "optimizer_lr_backbone": "learning rate of the image encoder",
    "optimizer_eps": "epsilon of the Adam optimiser",
    "optimizer_weight_decay": "weight decay of the optimiser",
    "optimizer_grad_clip_norm": "maximum gradient norm (gradient clipping)",
    "warmup_ratio": "warm-up of the learning rate as a share of max_steps",
    "scheduler_name": (
        "learning-rate schedule after the warm-up: cosine, linear or constant_with_warmup"
    ),
    "scheduler_warmup_steps": "warm-up steps of the learning rate",
    "scheduler_decay_steps": "steps until the learning rate reaches scheduler_decay_lr",
    "scheduler_decay_lr": "final learning rate",
}
_DEFAULTS: dict[str, Any] = {
    "vision_backbone": "resnet18",
    "pretrained_backbone_weights": "ResNet18_Weights.IMAGENET1K_V1",
    "crop_is_random": True,
    "resize_shape": None,
    "use_group_norm": False,
    "spatial_softmax_num_keypoints": 32,
    "use_bf16": True,
    "noise_scheduler_type": "DDPM",
    "num_train_timesteps": 100,
    "beta_schedule": "squaredcos_cap_v2",
    "beta_start": 0.0001,
    "beta_end": 0.02,
    "prediction_type": "epsilon",
    "clip_sample": True,
    "clip_sample_range": 1.0,
    "num_inference_steps": None,
    "min_period": 4e-3,
    "max_period": 4.0,
    "rtc_config": None,
    "do_mask_loss_for_padding": False,
    "tune_llm": False,
    "tune_visual": False,
    "tune_projector": True,
    "tune_diffusion_model": True,
    "optimizer_eps": 1e-8,
    "warmup_ratio": 0.05,
    "scheduler_name": "cosine",
    "scheduler_decay_steps": 30_000,
    "scheduler_decay_lr": 2.5e-6,
}
"""Defaults that are the same in all families."""
_NONE = {
    "crop_shape": "no crop",
    "resize_shape": "no resizing",
    "num_inference_steps": "num_train_timesteps",
    "rtc_config": "off",
    "drop_n_last_frames": "horizon - n_action_steps - n_obs_steps + 1",
}
"""What None means as a default."""
_ALLOWED: dict[str, Allowed] = {
    "chunk_size": STEPS,
    "horizon": STEPS,
    "n_obs_steps": up_to(64),
    "max_state_dim": WIDTH,
    "max_action_dim": WIDTH,
    "vision_backbone": Choices(("resnet18", "resnet34")),
    "crop_shape": Sides(),
    "resize_shape": Sides(),
    "spatial_softmax_num_keypoints": WIDTH,
    "tokenizer_max_length": up_to(MOST_PROMPT),
    "noise_scheduler_type": Choices(("DDPM", "DDIM")),
    "num_train_timesteps": STEPS,
    "beta_schedule": Choices(("squaredcos_cap_v2", "linear", "scaled_linear", "sigmoid")),
    "prediction_type": Choices(("epsilon", "sample")),
}


def shared(name: str, default: Any = ..., allowed: Allowed | None = None) -> Any:
    """Declare a field of several families; without ``default`` it is the same in all of them."""
    default = _DEFAULTS[name] if default is ... else default
    allowed, usual = allowed or _ALLOWED.get(name), _NONE.get(name, "") if default is None else ""
    if name in _SETTINGS:
        return setting(default, _SETTINGS[name], allowed, default_help=usual)
    return training_setting(default, _TRAINING[name], allowed, default_help=usual)


def normalization(**modes: NormMode) -> Any:
    """Declare ``normalization_mapping`` with the mode of each feature type."""
    return training_setting(
        modes,
        "normalisation mode by feature type: IDENTITY, MEAN_STD, MIN_MAX, QUANTILES or QUANTILE10",
    )


def optimizer_betas(first: float, second: float) -> Any:
    """Declare ``optimizer_betas``."""
    return training_setting([first, second], "betas of the Adam optimiser")


def backbone_file() -> Any:
    """Declare ``backbone_file``, which config.json does not have."""
    text, usual = "local file of the ImageNet weights (.pth, .safetensors)", "downloaded"
    flag = training_field(text, default_help=usual) | run_flag(text, default_help=usual)
    return field(default=None, metadata=flag | PRESENTATION | LOCAL_PATH)
