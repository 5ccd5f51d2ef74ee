"""Config fields that several policy families share: one help text and one set of metadata each.

A dataclass mixin cannot hold them: LeRobot's config.json has them at another place in each family,
and inherited fields come first. So each family declares the field at its place, with its default:

    chunk_size: int = shared.chunk_size(50)

No torch here: `--help` reads configs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from proctor.features import NormMode
from proctor.fingerprint import LOCAL_PATH, PRESENTATION, TRAINING_ONLY, UNSAVED
from proctor.policies.lerobot.config import NOT_A_FLAG
from proctor.policies.lerobot.rtc_config import HELP as RTC_HELP
from proctor.settings import setting

_REQUIRED = object()


def training_setting(default: Any, text: str) -> Any:
    """Declare a field of config.json that is a flag of training only."""
    return setting(default, text, TRAINING_ONLY)


def unused(default: Any) -> Any:
    """Declare a field that LeRobot's config.json has and no run uses."""
    return setting(default, "", NOT_A_FLAG)


def _shared(
    text: str, *marks: Mapping[str, Any], usual: Any = _REQUIRED, absent: str = ""
) -> Callable[..., Any]:
    """Return a function from a field's default to the field; ``absent`` is the meaning of None."""

    def declare(default: Any = usual) -> Any:
        meaning = f" (default: {absent})" if absent and default is None else ""
        return setting(default, text + meaning, *marks)

    return declare


def _trained(text: str, usual: Any = _REQUIRED, absent: str = "") -> Callable[..., Any]:
    return _shared(text, TRAINING_ONLY, usual=usual, absent=absent)


# Observations and action chunks

n_obs_steps = _shared("observation steps given to the policy, the newest last")
chunk_size = _shared("actions predicted per inference call")
horizon = _shared("steps of the denoised action sequence, starting at the oldest observation")
n_action_steps = _shared("actions executed before the next inference")
drop_n_last_frames = _trained(
    "last frames of every episode at which no training sample starts",
    absent="horizon - n_action_steps - n_obs_steps + 1",
)
do_mask_loss_for_padding = _trained(
    "exclude padded actions (after the end of an episode) from the loss", False
)
max_state_dim = _shared("length that states are zero-padded to")
max_action_dim = _shared("length that actions are zero-padded to")


def normalization(**modes: NormMode) -> Any:
    """Declare ``normalization_mapping`` with the mode of each feature type."""
    return training_setting(
        modes,
        "normalisation mode by feature type: IDENTITY, MEAN_STD, MIN_MAX, QUANTILES or QUANTILE10",
    )


# Image encoders

vision_backbone = _shared("image encoder: resnet18 or resnet34", usual="resnet18")
pretrained_backbone_weights = _trained(
    "ImageNet weights of the image encoder, downloaded once; none: random initialisation",
    "ResNet18_Weights.IMAGENET1K_V1",
)
backbone_file = _shared(
    "local file of the ImageNet weights (.pth, .safetensors)",
    *(TRAINING_ONLY, UNSAVED, PRESENTATION, LOCAL_PATH),
    usual=None,
    absent="downloaded",
)
crop_shape = _shared(
    "crop images to [height,width] pixels, at the centre in evaluation; none: no crop",
    absent="no crop",
)
crop_is_random = _trained("crop at random positions in training; false: at the centre", True)
resize_shape = _shared(
    "resize images to [height,width] pixels before the crop", usual=None, absent="no resizing"
)
use_group_norm = _shared("replace BatchNorm by GroupNorm in the image encoder", usual=False)
spatial_softmax_num_keypoints = _shared("keypoints of the spatial softmax, per camera", usual=32)
separate_encoders = _shared("use a separate image encoder for each camera")
freeze_vision_encoder = _trained("freeze the vision encoder")

# Language

tokenizer_max_length = _shared("maximum tokens of a prompt; longer prompts are truncated")

# Diffusion and flow matching

noise_scheduler_type = _shared("noise scheduler: DDPM or DDIM", usual="DDPM")
num_train_timesteps = _shared("diffusion steps in training", usual=100)
beta_schedule = _shared(
    "noise schedule: squaredcos_cap_v2, linear, scaled_linear or sigmoid", usual="squaredcos_cap_v2"
)
beta_start = _shared(
    "first beta of the noise schedule (squaredcos_cap_v2 ignores it)", usual=0.0001
)
beta_end = _shared("last beta of the noise schedule (squaredcos_cap_v2 ignores it)", usual=0.02)
prediction_type = _shared("prediction target of the network: epsilon or sample", usual="epsilon")
clip_sample = _shared("clip the denoised sample at every denoising step", usual=True)
clip_sample_range = _shared("with clip_sample: largest absolute value of the sample", usual=1.0)
num_inference_steps = _shared(
    "denoising steps per inference", usual=None, absent="num_train_timesteps"
)
min_period = _shared("minimum period of the sinusoidal time embedding", usual=4e-3)
max_period = _shared("maximum period of the sinusoidal time embedding", usual=4.0)
rtc_config = _shared(RTC_HELP, usual=None, absent="off")

# Optimiser and learning-rate schedule

dropout = _trained("dropout probability")
optimizer_lr = _trained("learning rate of the optimiser")
optimizer_lr_backbone = _trained("learning rate of the image encoder")
optimizer_eps = _trained("epsilon of the Adam optimiser", 1e-8)
optimizer_weight_decay = _trained("weight decay of the optimiser")
optimizer_grad_clip_norm = _trained("maximum gradient norm (gradient clipping)")
scheduler_name = _trained(
    "learning-rate schedule after the warm-up: cosine, linear or constant_with_warmup", "cosine"
)
scheduler_warmup_steps = _trained("warm-up steps of the learning rate")
scheduler_decay_steps = _trained("steps until the learning rate reaches scheduler_decay_lr", 30_000)
scheduler_decay_lr = _trained("final learning rate", 2.5e-6)


def optimizer_betas(first: float, second: float) -> Any:
    """Declare ``optimizer_betas``."""
    return training_setting([first, second], "betas of the Adam optimiser")
