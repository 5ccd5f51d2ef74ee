"""Configs and plug-ins of pi0 and pi0.5, and the config fields that pi0-FAST shares with them.

No torch here: `--help` reads configs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from proctor.errors import UsageError
from proctor.features import IMAGES, NormMode
from proctor.policies.lerobot.config.config import (
    CheckpointPlugin,
    setting,
    training_setting,
    unused,
)
from proctor.policies.lerobot.config.mixins import (
    VlaConfig,
    read_rtc,
)
from proctor.policies.lerobot.config.presets import SampleWindows
from proctor.policies.lerobot.config.shared_fields import normalization, optimizer_betas, shared
from proctor.policies.lerobot.fresh import make_fresh
from proctor.policies.lerobot.processors.limits import (
    MOST_PIXELS,
    POSITIVE,
    STEPS,
    Choices,
    check_periods,
)
from proctor.policies.pi0.sizes import GEMMAS, VISION

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors.processors import StepLists, UsualSteps
    from proctor.policies.lerobot.processors.step import ProcessorStep

PALIGEMMA = "google/paligemma-3b-pt-224"
"""Hub id of the family's tokenizer."""
_EMPTY = f"{IMAGES}empty_camera_"
"""Prefix of the placeholder cameras that LeRobot adds to a config."""
_PRECISIONS = ("float32", "bfloat16")


@dataclass
class PiConfig(VlaConfig):
    """Fields of the whole family, in LeRobot's order and with LeRobot 0.6's defaults."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Images": "image_resolution",
    }

    paligemma_variant: str = setting(
        "gemma_2b", "size of the language model: gemma_2b or gemma_300m", Choices(tuple(GEMMAS))
    )
    action_expert_variant: str = setting(
        "gemma_300m", "size of the action expert: gemma_300m or gemma_2b", Choices(tuple(GEMMAS))
    )
    dtype: str = setting(
        "float32", "dtype of the large weight matrices: float32 or bfloat16; the rest is float32"
    )
    chunk_size: int = shared("chunk_size", 50)
    n_action_steps: int = shared("n_action_steps", 50)
    max_state_dim: int = shared("max_state_dim", 32)
    max_action_dim: int = shared("max_action_dim", 32)
    use_relative_actions: bool = training_setting(
        False, "train on actions relative to the current state"
    )
    relative_exclude_joints: list[str] = training_setting(
        ["gripper"], "with use_relative_actions: joints that stay absolute, by part of their name"
    )
    action_feature_names: list[str] | None = unused(None)
    rtc_config: dict[str, Any] | None = shared("rtc_config")
    image_resolution: list[int] = setting(
        [224, 224], "resize images to [height,width] pixels, with padding"
    )
    empty_cameras: int = unused(0)
    tokenizer_max_length: int = shared("tokenizer_max_length", 48)
    normalization_mapping: dict[str, NormMode] = normalization(
        VISUAL=NormMode.IDENTITY, STATE=NormMode.MEAN_STD, ACTION=NormMode.MEAN_STD
    )
    gradient_checkpointing: bool = training_setting(
        False, "gradient checkpointing: recompute activations to save memory"
    )
    compile_model: bool = unused(False)
    compile_mode: str = unused("max-autotune")
    optimizer_lr: float = shared("optimizer_lr", 2.5e-5)
    optimizer_betas: list[float] = optimizer_betas(0.9, 0.95)
    optimizer_eps: float = shared("optimizer_eps")
    optimizer_weight_decay: float = shared("optimizer_weight_decay", 0.01)
    optimizer_grad_clip_norm: float = shared("optimizer_grad_clip_norm", 1.0)
    scheduler_warmup_steps: int = shared("scheduler_warmup_steps", 1000)
    scheduler_decay_steps: int = shared("scheduler_decay_steps")
    scheduler_decay_lr: float = shared("scheduler_decay_lr")

    def __post_init__(self) -> None:
        """Drop the empty cameras that LeRobot adds; the network ignores them."""
        self.input_features = {
            key: feature
            for key, feature in self.input_features.items()
            if not key.startswith(_EMPTY)
        }

    @property
    def side(self) -> tuple[int, int]:
        """Height and width of the vision encoder's input."""
        height, width = self.image_resolution
        return height, width

    def processing(self, usual: UsualSteps) -> StepLists:
        """Return LeRobot's pre- and postprocessing steps of pi0; the prompt holds no state."""
        from proctor.policies.pi0.steps import Pi0NewLine

        before = usual.rename, usual.to_batch, Pi0NewLine(), self.tokenizer_step(), usual.to_device
        return (*before, self.relative_step(), usual.normalize), self.postprocessing(usual)

    @property
    def text_tokenizer(self) -> str:
        """Folder or Hub id of a new policy's text tokenizer."""
        return PALIGEMMA

    def tokenizer_step(self) -> ProcessorStep:
        """Return the step that tokenizes the prompt."""
        from proctor.policies.lerobot.tokenizer.language import Tokenize

        return Tokenize(max_length=self.tokenizer_max_length, tokenizer_name=self.text_tokenizer)

    def relative_step(self) -> ProcessorStep:
        """Return the step that subtracts the state from actions, if that is enabled."""
        from proctor.policies.lerobot.processors.relative_actions import RelativeActions

        return RelativeActions(
            self.use_relative_actions, self.relative_exclude_joints, self.action_feature_names
        )

    def postprocessing(self, usual: UsualSteps) -> Sequence[ProcessorStep]:
        """Return the postprocessing steps."""
        from proctor.policies.lerobot.processors.relative_actions import AbsoluteActions

        return usual.unnormalize, AbsoluteActions(self.use_relative_actions), usual.to_cpu

    def validate(self) -> None:
        """Also check what the family requires: model names, chunk length, inputs."""
        super().validate()
        if self.dtype == "float16":
            raise UsageError(
                "dtype is 'float16', whose range is too small for the pretrained weights; choose "
                "float32 or bfloat16, as in LeRobot",
                code="policy.unsupported-dtype",
            )
        Choices(_PRECISIONS).check("dtype", self.dtype)
        self._validate_inputs()

    def _validate_inputs(self) -> None:
        sides, patch = self.image_resolution, VISION.patch_size
        if len(sides) != 2 or sides[0] != sides[1] or not patch <= sides[0] <= MOST_PIXELS:
            raise UsageError(
                f"image_resolution is {sides}, expected a square of at least {patch}",
                code="policy.invalid-shape",
            )


@dataclass
class FlowConfig(PiConfig):
    """Fields that flow matching adds: pi0 and pi0.5."""

    num_inference_steps: int = setting(10, "denoising steps per inference", STEPS)
    time_sampling_beta_alpha: float = training_setting(
        1.5, "alpha of the Beta distribution of training timesteps", POSITIVE
    )
    time_sampling_beta_beta: float = training_setting(
        1.0, "beta of the Beta distribution of training timesteps; only 1 is supported"
    )
    time_sampling_scale: float = training_setting(0.999, "scale of the sampled timesteps")
    time_sampling_offset: float = training_setting(0.001, "offset of the sampled timesteps")
    min_period: float = shared("min_period")
    max_period: float = shared("max_period")
    freeze_vision_encoder: bool = shared("freeze_vision_encoder", False)
    train_expert_only: bool = training_setting(
        False, "freeze the vision-language model; train the action expert only"
    )

    def samples(self) -> SampleWindows:
        """Return the family's samples; the beta of the timestep distribution must be 1."""
        if self.time_sampling_beta_beta != 1:
            raise UsageError(
                f"time_sampling_beta_beta is {self.time_sampling_beta_beta:g}: training supports "
                "1 only",
                code="policy.not-trainable",
            )
        return super().samples()

    def validate(self) -> None:
        """Also check the fields of flow matching."""
        super().validate()
        if read_rtc(self.rtc_config) is not None and self.use_relative_actions:
            raise UsageError(
                "rtc_config and use_relative_actions exclude each other: the rest of a chunk is "
                "relative to an earlier state",
                code="policy.conflict",
            )
        check_periods(self)
        models = [GEMMAS[self.paligemma_variant], GEMMAS[self.action_expert_variant]]
        if len({(m.depth, m.n_heads, m.n_kv_heads, m.head_dim) for m in models}) > 1:
            raise UsageError(
                f"{self.action_expert_variant} cannot attend to {self.paligemma_variant}: they "
                "differ in depth or heads",
                code="policy.expert-mismatch",
            )


@dataclass
class Pi0Config(FlowConfig):
    """pi0's fields."""

    type: str = "pi0"


PLUGIN = CheckpointPlugin(
    config=Pi0Config,
    summary="pi0, a vision-language-action model, untrained (trained: --policy.path)",
    network="proctor.policies.pi0.network:Pi0",
    prefix="model.",
    steps={"pi0_new_line_processor": "proctor.policies.pi0.steps:Pi0NewLine"},
    signature_fields=frozenset({"paligemma_variant", "num_inference_steps"}),
    make=make_fresh,
)


_HISTORY_FIELDS = ("use_visual_memory", "use_proprioceptive_memory")
"""Fields of LeRobot after 0.6.1 that give the policy a history of observations."""


@dataclass
class Pi05Config(FlowConfig):
    """pi0's fields with pi0.5's defaults."""

    type: str = "pi05"
    tokenizer_max_length: int = shared("tokenizer_max_length", 200)
    normalization_mapping: dict[str, NormMode] = normalization(
        VISUAL=NormMode.IDENTITY, STATE=NormMode.QUANTILES, ACTION=NormMode.QUANTILES
    )

    def processing(self, usual: UsualSteps) -> StepLists:
        """Return LeRobot's steps of pi0.5; the prompt holds the normalised state."""
        from proctor.policies.pi0.steps import Pi05StatePrompt

        prompt = Pi05StatePrompt(max_state_dim=self.max_state_dim)
        before = usual.rename, usual.to_batch, self.relative_step(), usual.normalize
        return (*before, prompt, self.tokenizer_step(), usual.to_device), self.postprocessing(usual)

    def validate(self) -> None:
        """Also refuse a history of observations, which is not supported."""
        super().validate()
        for name in _HISTORY_FIELDS:
            if self.unknown.get(name):
                raise UsageError(
                    f"{name} is set, which is not supported", code="policy.unsupported-field"
                )


PI05_PLUGIN = CheckpointPlugin(
    config=Pi05Config,
    summary="pi0.5, a vision-language-action model, untrained (trained: --policy.path)",
    network="proctor.policies.pi0.network:Pi05",
    prefix="model.",
    steps={
        "pi05_prepare_state_tokenizer_processor_step": "proctor.policies.pi0.steps:Pi05StatePrompt"
    },
    signature_fields=frozenset({"paligemma_variant", "num_inference_steps"}),
    make=make_fresh,
)
