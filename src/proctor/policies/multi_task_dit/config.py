"""Config and plug-in of LeRobot's multi-task diffusion transformer.

The network is in network.py, its denoiser in transformer.py. No torch here: `--help` reads configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from proctor.errors import UsageError
from proctor.features import NormMode
from proctor.policies.lerobot.config.config import (
    CheckpointPlugin,
    run_flag,
    setting,
    training_field,
    training_setting,
)
from proctor.policies.lerobot.config.mixins import DenoisingMixin, LanguageConfig
from proctor.policies.lerobot.config.presets import TrainingPreset
from proctor.policies.lerobot.config.shared_fields import normalization, optimizer_betas, shared
from proctor.policies.lerobot.fresh import make_fresh
from proctor.policies.lerobot.processors.limits import (
    LAYERS,
    POSITIVE,
    SHARE,
    STEPS,
    WIDTH,
    Choices,
    Limits,
    check_divisible,
    check_embedding_width,
    check_same_shape,
    require_inputs,
    up_to,
)

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors.processors import StepLists, UsualSteps

CLIP = "openai/clip-vit-base-patch16"


@dataclass
class DitConfig(DenoisingMixin, LanguageConfig):
    """The fields of multi_task_dit, in LeRobot's order and with LeRobot 0.6's defaults."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Language": "tokenizer_padding tokenizer_padding_side tokenizer_truncation",
        "Inference": "num_integration_steps integration_method",
    }

    type: str = "multi_task_dit"
    n_obs_steps: int = shared("n_obs_steps", 2)
    horizon: int = shared("horizon", 32, up_to(512))
    n_action_steps: int = shared("n_action_steps", 24)
    objective: str = setting(
        "diffusion",
        "training objective: diffusion or flow_matching",
        Choices(("diffusion", "flow_matching")),
    )
    noise_scheduler_type: str = shared("noise_scheduler_type")
    num_train_timesteps: int = shared("num_train_timesteps")
    beta_schedule: str = shared("beta_schedule")
    beta_start: float = shared("beta_start")
    beta_end: float = shared("beta_end")
    prediction_type: str = shared("prediction_type")
    clip_sample: bool = shared("clip_sample")
    clip_sample_range: float = shared("clip_sample_range")
    num_inference_steps: int | None = shared("num_inference_steps")
    sigma_min: float = setting(
        0.0, "flow matching: standard deviation of the noise at the end of the path", Limits(0, 1)
    )
    num_integration_steps: int = setting(
        100, "flow matching: integration steps per inference", STEPS
    )
    integration_method: str = setting(
        "euler", "flow matching: integration method, euler or rk4", Choices(("euler", "rk4"))
    )
    timestep_sampling_strategy: str = training_setting(
        "beta",
        "flow matching: distribution of training timesteps, beta or uniform",
        Choices(("beta", "uniform")),
    )
    timestep_sampling_s: float = training_setting(0.999, "beta strategy: largest timestep, 0 to 1")
    timestep_sampling_alpha: float = training_setting(
        1.5, "beta strategy: alpha of the Beta distribution", POSITIVE
    )
    timestep_sampling_beta: float = training_setting(
        1.0, "beta strategy: beta of the Beta distribution", POSITIVE
    )
    hidden_dim: int = setting(512, "width of the transformer", WIDTH)
    num_layers: int = setting(6, "layers of the transformer", LAYERS)
    num_heads: int = setting(8, "attention heads of the transformer", up_to(1024))
    dropout: float = training_setting(0.1, "dropout probability of the attention weights", SHARE)
    use_positional_encoding: bool = setting(
        False, "add learned position embeddings to the actions of a chunk"
    )
    timestep_embed_dim: int = setting(256, "dimension of the timestep embedding", WIDTH)
    use_rope: bool = setting(True, "use rotary position embeddings (RoPE)")
    rope_base: float = setting(10000.0, "base of the rotary position embeddings", POSITIVE)
    vision_encoder_name: str = setting(CLIP, "CLIP image encoder: a folder or a Hub id")
    use_separate_rgb_encoder_per_camera: bool = shared("separate_encoders", False)
    vision_encoder_lr_multiplier: float = training_setting(
        0.1, "learning rate of the image encoder, as a multiple of optimizer_lr"
    )
    image_resize_shape: list[int] | None = shared("resize_shape")
    image_crop_shape: list[int] | None = shared("crop_shape", [224, 224])
    image_crop_is_random: bool = shared("crop_is_random")
    text_encoder_name: str = setting(CLIP, "CLIP text encoder: a folder or a Hub id")
    tokenizer_max_length: int = shared("tokenizer_max_length", 77)
    tokenizer_padding: str = setting(
        "max_length",
        "padding of prompts, max_length or longest, saved for LeRobot; here "
        "prompts are always padded to tokenizer_max_length",
        Choices(("max_length", "longest")),
    )
    tokenizer_padding_side: str = setting(
        "right", "padding side of prompts: right or left", Choices(("right", "left"))
    )
    tokenizer_truncation: bool = setting(
        True, "truncate prompts that are longer than tokenizer_max_length"
    )
    normalization_mapping: dict[str, NormMode] = normalization(
        VISUAL=NormMode.MEAN_STD, STATE=NormMode.MIN_MAX, ACTION=NormMode.MIN_MAX
    )
    optimizer_lr: float = shared("optimizer_lr", 2e-5)
    optimizer_betas: list[float] = optimizer_betas(0.95, 0.999)
    optimizer_eps: float = shared("optimizer_eps")
    optimizer_weight_decay: float = shared("optimizer_weight_decay", 0.0)
    scheduler_name: str = shared("scheduler_name")
    scheduler_warmup_steps: int = shared("scheduler_warmup_steps", 0)
    do_mask_loss_for_padding: bool = shared("do_mask_loss_for_padding")
    drop_n_last_frames: int | None = shared("drop_n_last_frames", None)
    load_clip_weights: bool = field(
        default=True,
        metadata=run_flag("start from CLIP's pretrained weights; false: random initialisation")
        | training_field("start from CLIP's pretrained weights; false: random initialisation"),
    )

    def __post_init__(self) -> None:
        """Compute ``drop_n_last_frames``, as LeRobot stores it: no sample needs padded actions."""
        if self.drop_n_last_frames is None:
            self.drop_n_last_frames = self.horizon - self.n_action_steps - self.n_obs_steps + 1

    @property
    def crop(self) -> list[int] | None:
        """Size that images are cropped to; None where images are smaller, as in LeRobot."""
        crop = self.image_crop_shape
        if crop is None or not self.cameras:
            return None
        height, width = self.image_resize_shape or self.input_features[self.cameras[0]].shape[:2]
        return None if crop[0] > height or crop[1] > width else crop

    @property
    def encoded_size(self) -> tuple[int, int]:
        """Height and width of the image encoder's input, after resize and crop."""
        shape = self.input_features[self.cameras[0]].shape
        height, width = self.crop or self.image_resize_shape or shape[:2]
        return height, width

    def processing(self, usual: UsualSteps) -> StepLists:
        """Return the usual steps with a tokenizer among them."""
        from proctor.policies.lerobot.tokenizer.language import Tokenize

        tokens = Tokenize(
            max_length=self.tokenizer_max_length,
            padding_side=self.tokenizer_padding_side,
            padding=self.tokenizer_padding,
            truncation=self.tokenizer_truncation,
            tokenizer_name=self.text_encoder_name,
        )
        before = usual.rename, usual.to_batch, tokens, usual.to_device, usual.normalize
        return before, (usual.unnormalize, usual.to_cpu)

    def training_preset(self) -> TrainingPreset:
        """Return Adam, with the named schedule after a warm-up."""
        if self.timestep_sampling_strategy == "beta" and 1.0 not in (
            self.timestep_sampling_alpha,
            self.timestep_sampling_beta,
        ):
            raise UsageError(
                "the beta strategy needs timestep_sampling_alpha or timestep_sampling_beta to be "
                f"1, not {self.timestep_sampling_alpha:g} and {self.timestep_sampling_beta:g}",
                code="policy.out-of-range",
            )
        return super().training_preset()

    def validate(self) -> None:
        """Check its own rules too: names, lengths, image sizes."""
        super().validate()
        self._validate_widths()
        self.check_lengths()
        self._validate_inputs()

    def _validate_widths(self) -> None:
        check_divisible(self, "hidden_dim", "num_heads")
        if self.use_rope and self.hidden_dim // self.num_heads % 2:
            raise UsageError(
                "use_rope needs an even head width: change hidden_dim or num_heads",
                code="policy.not-divisible",
            )
        check_embedding_width(self, "timestep_embed_dim")

    def _validate_inputs(self) -> None:
        require_inputs(self, state=True)
        check_same_shape("multi_task_dit", self.input_features, self.cameras)


PLUGIN = CheckpointPlugin(
    config=DitConfig,
    summary="Multi-task diffusion transformer, untrained (trained: --policy.path)",
    network="proctor.policies.multi_task_dit.network:Dit",
    prefix="",
    signature_fields=frozenset({"noise_scheduler_type", "vision_encoder_lr_multiplier"}),
    make=make_fresh,
)
