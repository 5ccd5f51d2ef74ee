"""Multi-task diffusion transformer, the plug-in: its config and how it is made.

The policy itself is in network.py, its denoiser in transformer.py; this file stays light, because
`--help` reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from proctor.errors import UsageError
from proctor.features import Interface, NormMode
from proctor.policies.base import Policy
from proctor.policies.lerobot.config import CheckpointPlugin, of_training, run_flag
from proctor.policies.lerobot.language_config import LanguageConfig
from proctor.policies.lerobot.limits import (
    MOST_LAYERS,
    MOST_STEPS,
    MOST_WIDTH,
    check_choices,
    check_sides,
    check_sizes,
)
from proctor.policies.lerobot.presets import Samples, ScheduleSettings, TrainingPreset, adam_of

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors import UsualSteps
    from proctor.policies.lerobot.step import Step

CLIP = "openai/clip-vit-base-patch16"
_MOST = {
    "horizon": 512,
    "hidden_dim": MOST_WIDTH,
    "num_layers": MOST_LAYERS,
    "num_heads": 1024,
    "timestep_embed_dim": MOST_WIDTH,
    "num_train_timesteps": MOST_STEPS,
    "num_integration_steps": MOST_STEPS,
    "tokenizer_max_length": 4096,
}
_CHOICES = {
    "objective": ("diffusion", "flow_matching"),
    "noise_scheduler_type": ("DDPM", "DDIM"),
    "beta_schedule": ("squaredcos_cap_v2", "linear", "scaled_linear", "sigmoid"),
    "prediction_type": ("epsilon", "sample"),
    "integration_method": ("euler", "rk4"),
    "timestep_sampling_strategy": ("beta", "uniform"),
    "tokenizer_padding": ("max_length", "longest"),
    "tokenizer_padding_side": ("right", "left"),
}


@dataclass
class DitConfig(LanguageConfig):
    """The fields of LeRobot's multi_task_dit; the defaults are LeRobot 0.6's."""

    type: str = "multi_task_dit"
    n_obs_steps: int = field(
        default=2, metadata={"help": "observations it looks at, the newest last"}
    )
    horizon: int = field(default=32, metadata={"help": "steps denoised at once"})
    n_action_steps: int = field(
        default=24, metadata={"help": "actions played before the policy is asked again"}
    )
    objective: str = field(default="diffusion", metadata={"help": "diffusion or flow_matching"})
    noise_scheduler_type: str = field(
        default="DDPM", metadata={"help": "of diffusion: DDPM or DDIM"}
    )
    num_train_timesteps: int = field(
        default=100, metadata={"help": "of diffusion: denoising steps in training"}
    )
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
    sigma_min: float = field(default=0.0, metadata={"help": "of flow_matching: noise at its end"})
    num_integration_steps: int = field(
        default=100, metadata={"help": "of flow_matching: steps from noise to actions"}
    )
    integration_method: str = field(
        default="euler", metadata={"help": "of flow_matching: euler or rk4"}
    )
    timestep_sampling_strategy: str = field(
        default="beta", metadata=of_training("of flow_matching: beta or uniform")
    )
    timestep_sampling_s: float = field(
        default=0.999, metadata=of_training("of beta: times go up to this")
    )
    timestep_sampling_alpha: float = field(default=1.5, metadata=of_training("of beta"))
    timestep_sampling_beta: float = field(default=1.0, metadata=of_training("of beta"))
    hidden_dim: int = field(default=512, metadata={"help": "width of the transformer"})
    num_layers: int = field(default=6, metadata={"help": "its blocks"})
    num_heads: int = field(default=8, metadata={"help": "its attention heads"})
    dropout: float = field(default=0.1, metadata=of_training("share of attention left out"))
    use_positional_encoding: bool = field(
        default=False, metadata={"help": "learn the places of actions in a chunk"}
    )
    timestep_embed_dim: int = field(default=256, metadata={"help": "length of the time embedding"})
    use_rope: bool = field(default=True, metadata={"help": "turn queries and keys by their place"})
    rope_base: float = field(default=10000.0, metadata={"help": "slowest of those turns"})
    vision_encoder_name: str = field(
        default=CLIP, metadata={"help": "the CLIP that it sees by, a folder or a Hub id"}
    )
    use_separate_rgb_encoder_per_camera: bool = field(
        default=False, metadata={"help": "an image encoder of its own for each camera"}
    )
    vision_encoder_lr_multiplier: float = field(
        default=0.1, metadata=of_training("learning rate of the image encoder, times optimizer_lr")
    )
    image_resize_shape: list[int] | None = field(
        default=None, metadata={"help": "resize images to [height,width] first"}
    )
    image_crop_shape: list[int] | None = field(
        default_factory=lambda: [224, 224],
        metadata={"help": "crop images to [height,width], the centre at rollout"},
    )
    image_crop_is_random: bool = field(
        default=True, metadata=of_training("crop anywhere, each sample elsewhere")
    )
    text_encoder_name: str = field(
        default=CLIP, metadata={"help": "the CLIP that it hears by, a folder or a Hub id"}
    )
    tokenizer_max_length: int = field(
        default=77, metadata={"help": "tokens of an instruction; what is longer is cut"}
    )
    tokenizer_padding: str = field(default="max_length", metadata={"help": "as LeRobot has it"})
    tokenizer_padding_side: str = field(default="right", metadata={"help": "side that is padded"})
    tokenizer_truncation: bool = field(default=True, metadata={"help": "cut long instructions"})
    normalization_mapping: dict[str, NormMode] = field(
        default_factory=lambda: {
            "VISUAL": NormMode.MEAN_STD,
            "STATE": NormMode.MIN_MAX,
            "ACTION": NormMode.MIN_MAX,
        },
        metadata=of_training("how each kind of feature is normalised, as {STATE: MIN_MAX}"),
    )
    optimizer_lr: float = field(default=2e-5, metadata=of_training("learning rate"))
    optimizer_betas: list[float] = field(
        default_factory=lambda: [0.95, 0.999], metadata=of_training("betas of Adam")
    )
    optimizer_eps: float = field(default=1e-8, metadata=of_training("epsilon of Adam"))
    optimizer_weight_decay: float = field(default=0.0, metadata=of_training("weight decay"))
    scheduler_name: str = field(
        default="cosine", metadata=of_training("the learning rate after the warm-up")
    )
    scheduler_warmup_steps: int = field(
        default=0, metadata=of_training("steps of rising learning rate")
    )
    do_mask_loss_for_padding: bool = field(
        default=False, metadata=of_training("leave actions after an episode's end out of the loss")
    )
    drop_n_last_frames: int | None = field(
        default=None, metadata=of_training("frames at an episode's end that no sample begins at")
    )
    load_clip_weights: bool = field(
        default=True,
        metadata=run_flag("start from the weights of the CLIPs that are named")
        | of_training("start from the weights of the CLIPs that are named"),
    )

    def __post_init__(self) -> None:
        """As LeRobot, which stores the result: by default no sample reaches beyond an episode."""
        if self.drop_n_last_frames is None:
            self.drop_n_last_frames = self.horizon - self.n_action_steps - self.n_obs_steps + 1

    @property
    def crop(self) -> list[int] | None:
        """What images are cropped to; None: not at all, as where they are smaller in LeRobot."""
        crop = self.image_crop_shape
        if crop is None or not self.cameras:
            return None
        height, width = self.image_resize_shape or self.input_features[self.cameras[0]].shape[:2]
        return None if crop[0] > height or crop[1] > width else crop

    @property
    def encoded_size(self) -> tuple[int, int]:
        """Height and width of what the image encoder sees, after resize and crop."""
        shape = self.input_features[self.cameras[0]].shape
        height, width = self.crop or self.image_resize_shape or shape[:2]
        return height, width

    def processing(self, usual: UsualSteps) -> tuple[Sequence[Step], Sequence[Step]]:
        """The usual steps, and tokens."""
        from proctor.policies.lerobot.language import Tokenize

        tokens = Tokenize(
            max_length=self.tokenizer_max_length,
            padding_side=self.tokenizer_padding_side,
            padding=self.tokenizer_padding,
            truncation=self.tokenizer_truncation,
            tokenizer_name=self.text_encoder_name,
        )
        before = usual.rename, usual.to_batch, tokens, usual.to_device, usual.normalize
        return before, (usual.unnormalize, usual.to_cpu)

    def samples(self) -> Samples:
        """The last observations, and a horizon of actions that begins with the oldest of them."""
        first = 1 - self.n_obs_steps
        return Samples(
            action_steps=range(first, first + self.horizon),
            observation_steps=range(first, 1),
            drop_last=self.drop_n_last_frames or 0,
        )

    def training_preset(self) -> TrainingPreset:
        """Adam, and a cosine.

        Raises:
            UsageError: times are to be drawn in a way that is not known here.
        """
        if self.timestep_sampling_strategy == "beta" and 1.0 not in (
            self.timestep_sampling_alpha,
            self.timestep_sampling_beta,
        ):
            raise UsageError(
                "times are drawn from a beta distribution with timestep_sampling_alpha or _beta of "
                f"1, not {self.timestep_sampling_alpha:g} and {self.timestep_sampling_beta:g}"
            )
        schedule = ScheduleSettings(
            type="diffuser",
            num_warmup_steps=self.scheduler_warmup_steps,
            name=self.scheduler_name,
        )
        return TrainingPreset(adam_of(self), schedule)

    def validate(self) -> None:
        """Check its own rules too: names, chunk arithmetic, camera shapes."""
        super().validate()
        check_sizes(self, _MOST)
        check_choices(self, _CHOICES)
        check_sides(self, "image_resize_shape", "image_crop_shape")
        self._validate_widths()
        self._validate_lengths()
        self._validate_numbers()
        self._validate_inputs()

    def _validate_widths(self) -> None:
        if self.hidden_dim % self.num_heads:
            raise UsageError(f"hidden_dim is {self.hidden_dim}, no multiple of {self.num_heads}")
        if self.use_rope and self.hidden_dim // self.num_heads % 2:
            raise UsageError("use_rope needs heads of an even width")
        if self.timestep_embed_dim < 4 or self.timestep_embed_dim % 2:
            raise UsageError(
                f"timestep_embed_dim is {self.timestep_embed_dim}, expected an even number of at "
                "least 4"
            )

    def _validate_lengths(self) -> None:
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

    def _validate_numbers(self) -> None:
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout is {self.dropout:g} (choose from 0 to below 1)")
        if not 0 <= self.sigma_min <= 1:
            raise UsageError(f"sigma_min is {self.sigma_min:g} (choose from 0 to 1)")
        for name in ("rope_base", "timestep_sampling_alpha", "timestep_sampling_beta"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name):g} (choose above 0)")

    def _validate_inputs(self) -> None:
        if self.state_dim is None:
            raise UsageError("multi_task_dit needs observation.state as input")
        shapes = {self.input_features[key].shape for key in self.cameras}
        if len(shapes) > 1:
            raise UsageError(f"multi_task_dit's cameras differ in shape: {sorted(shapes)}")


def make(config: DitConfig, interface: Interface) -> Policy:
    """Make one with fresh random weights for the interface's cameras and state."""
    from proctor.policies.lerobot.checkpoint import fresh_policy

    return fresh_policy(PLUGIN, config, interface)


PLUGIN = CheckpointPlugin(
    config=DitConfig,
    make=make,
    summary="Multi-task diffusion transformer, untrained (trained: --policy.path)",
    network="proctor.policies.dit.network:Dit",
    prefix="",
    tell_tale=frozenset({"noise_scheduler_type", "vision_encoder_lr_multiplier"}),
)
