"""Config and plug-in of SmolVLA. The network is in network.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from proctor.errors import UsageError
from proctor.features import NormMode
from proctor.policies.lerobot.config.config import (
    CheckpointPlugin,
    setting,
    training_setting,
    unused,
)
from proctor.policies.lerobot.config.mixins import (
    VlaConfig,
)
from proctor.policies.lerobot.config.shared_fields import normalization, optimizer_betas, shared
from proctor.policies.lerobot.fresh import make_fresh
from proctor.policies.lerobot.processors.limits import (
    Choices,
    Limits,
    Sides,
    check_periods,
    up_to,
)
from proctor.policies.smolvla.vlm import SMOLVLM2

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors.processors import StepLists, UsualSteps

ALOHA_JOINTS = 14
_MOST_DIM = 1024


@dataclass
class SmolVlaConfig(VlaConfig):
    """SmolVLA's fields, in LeRobot's order and with LeRobot 0.6's defaults."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Observations and actions": "adapt_to_pi_aloha",
        "Language": "pad_language_to",
        "Inference": "num_steps",
    }

    type: str = "smolvla"
    chunk_size: int = shared("chunk_size", 50)
    n_action_steps: int = shared("n_action_steps", 50)
    normalization_mapping: dict[str, NormMode] = normalization(
        VISUAL=NormMode.IDENTITY, STATE=NormMode.MEAN_STD, ACTION=NormMode.MEAN_STD
    )
    max_state_dim: int = shared("max_state_dim", 32, up_to(_MOST_DIM))
    max_action_dim: int = shared("max_action_dim", 32, up_to(_MOST_DIM))
    resize_imgs_with_padding: list[int] | None = setting(
        [512, 512],
        "resize images to [width,height] pixels, padded at the left and the top; none: no resizing",
        Sides(("width", "height")),
    )
    empty_cameras: int = unused(0)
    adapt_to_pi_aloha: bool = setting(
        False, "convert ALOHA's joint angles to the units of the base model"
    )
    use_delta_joint_actions_aloha: bool = unused(False)
    tokenizer_max_length: int = shared("tokenizer_max_length", 48)
    num_steps: int = setting(10, "denoising steps per inference", up_to(1000))
    use_cache: bool = unused(True)
    freeze_vision_encoder: bool = shared("freeze_vision_encoder", True)
    train_expert_only: bool = training_setting(
        True, "freeze the vision-language model; train the action expert only"
    )
    train_state_proj: bool = training_setting(True, "train the projection of the state")
    optimizer_lr: float = shared("optimizer_lr", 1e-4)
    optimizer_betas: list[float] = optimizer_betas(0.9, 0.95)
    optimizer_eps: float = shared("optimizer_eps")
    optimizer_weight_decay: float = shared("optimizer_weight_decay", 1e-10)
    optimizer_grad_clip_norm: float = shared("optimizer_grad_clip_norm", 10.0)
    scheduler_warmup_steps: int = shared("scheduler_warmup_steps", 1000)
    scheduler_decay_steps: int = shared("scheduler_decay_steps")
    scheduler_decay_lr: float = shared("scheduler_decay_lr")
    vlm_model_name: str = setting(SMOLVLM2, "vision-language model: a folder or a Hub id")
    load_vlm_weights: bool = training_setting(
        False,
        "start from the pretrained weights of the vision-language model; false: "
        "random initialisation",
    )
    add_image_special_tokens: bool = unused(False)
    attention_mode: str = setting(
        "cross_attn",
        "attention of the action expert: cross_attn or self_attn",
        Choices(("cross_attn", "self_attn")),
    )
    prefix_length: int = unused(-1)
    pad_language_to: str = setting(
        "longest",
        "padding of prompts, max_length or longest, saved for LeRobot; here "
        "prompts are always padded to tokenizer_max_length",
    )
    num_expert_layers: int = setting(
        -1, "layers of the action expert", default_help="as many as num_vlm_layers"
    )
    num_vlm_layers: int = setting(16, "layers of the language model to use; -1: all")
    self_attn_every_n_layers: int = setting(
        2, "with cross_attn: every n-th layer of the expert uses self-attention"
    )
    expert_width_multiplier: float = setting(
        0.75, "ratio of the action expert's width to the language model's", Limits(0, 4, above=True)
    )
    min_period: float = shared("min_period")
    max_period: float = shared("max_period")
    rtc_config: dict[str, Any] | None = shared("rtc_config")
    compile_model: bool = unused(False)
    compile_mode: str = unused("max-autotune")

    def processing(self, usual: UsualSteps) -> StepLists:
        """Return the usual processor steps and a tokenizer step."""
        from proctor.policies.lerobot.tokenizer.language import Tokenize
        from proctor.policies.smolvla.steps import SmolVlaNewLine

        tokens = Tokenize(
            max_length=self.tokenizer_max_length,
            padding=self.pad_language_to,
            tokenizer_name=self.vlm_model_name,
        )
        before = (
            usual.rename,
            usual.to_batch,
            SmolVlaNewLine(),
            tokens,
            usual.to_device,
            usual.normalize,
        )
        return before, (usual.unnormalize, usual.to_cpu)

    def validate(self) -> None:
        """Also check SmolVLA's inputs and sizes, and refuse settings that are not supported."""
        super().validate()
        check_periods(self)
        if self.adapt_to_pi_aloha and (self.state_dim, self.action_dim) != (ALOHA_JOINTS,) * 2:
            raise UsageError(
                f"adapt_to_pi_aloha is for ALOHA's {ALOHA_JOINTS} joints; state and action have "
                f"{self.state_dim} and {self.action_dim}",
                code="policy.wrong-robot",
            )
        for name in ("use_delta_joint_actions_aloha", "add_image_special_tokens"):
            if getattr(self, name):
                raise UsageError(
                    f"{name} is set, which is not supported", code="policy.unsupported-field"
                )


PLUGIN = CheckpointPlugin(
    config=SmolVlaConfig,
    summary="SmolVLA, untrained (trained: --policy.path)",
    network="proctor.policies.smolvla.network:SmolVla",
    prefix="model.",
    steps={"smolvla_new_line_processor": "proctor.policies.smolvla.steps:SmolVlaNewLine"},
    signature_fields=frozenset({"vlm_model_name", "expert_width_multiplier"}),
    make=make_fresh,
)
