"""pi0, the plug-in: its config and how it is made; and what its relatives' configs share with it.

This file stays light, because `--help` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from proctor.definition import Use
from proctor.errors import UsageError
from proctor.features import IMAGES, Interface, NormMode
from proctor.policies.base import Policy
from proctor.policies.lerobot.any_size import in_sizes_of
from proctor.policies.lerobot.config import (
    NOT_A_FLAG,
    CheckpointConfig,
    CheckpointPlugin,
    of_training,
)
from proctor.policies.lerobot.limits import MOST_PIXELS, MOST_STEPS, MOST_WIDTH, check_sizes
from proctor.policies.lerobot.presets import Samples, TrainingPreset, cosine_preset
from proctor.policies.lerobot.rtc_config import HELP as RTC_HELP
from proctor.policies.lerobot.rtc_config import read_rtc
from proctor.policies.pi0.sizes import GEMMAS, VISION

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors import UsualSteps
    from proctor.policies.lerobot.step import Step

PALIGEMMA = "google/paligemma-3b-pt-224"
"""The Hub's name for the tokenizer that all of the family read by."""
_EMPTY = f"{IMAGES}empty_camera_"
_MOST_TOKENS = 4096
_PRECISIONS = ("float32", "bfloat16")


@dataclass
class PiConfig(CheckpointConfig):
    """The fields that all of the family have, as in LeRobot; the defaults are LeRobot 0.6's."""

    paligemma_variant: str = field(default="gemma_2b", metadata={"help": "the language model"})
    action_expert_variant: str = field(default="gemma_300m", metadata={"help": "what acts"})
    dtype: str = field(
        default="float32",
        metadata={"help": "the large matrices: float32 or bfloat16; all else is float32"},
    )
    chunk_size: int = field(default=50, metadata={"help": "actions predicted at once"})
    n_action_steps: int = field(
        default=50, metadata={"help": "actions played before the policy is asked again"}
    )
    max_state_dim: int = field(default=32, metadata={"help": "a state is filled up to this"})
    max_action_dim: int = field(default=32, metadata={"help": "an action is filled up to this"})
    use_relative_actions: bool = field(
        default=False, metadata=of_training("actions are learnt as differences from the state")
    )
    relative_exclude_joints: list[str] = field(
        default_factory=lambda: ["gripper"],
        metadata=of_training("parts of names of actions that are not"),
    )
    action_feature_names: list[str] | None = field(default=None, metadata=NOT_A_FLAG)
    rtc_config: dict[str, Any] | None = field(default=None, metadata={"help": RTC_HELP})
    image_resolution: list[int] = field(
        default_factory=lambda: [224, 224], metadata={"help": "pictures are fitted to this"}
    )
    empty_cameras: int = field(default=0, metadata=NOT_A_FLAG)
    tokenizer_max_length: int = field(default=48, metadata={"help": "tokens of a prompt"})
    normalization_mapping: dict[str, NormMode] = field(
        default_factory=lambda: {
            "VISUAL": NormMode.IDENTITY,
            "STATE": NormMode.MEAN_STD,
            "ACTION": NormMode.MEAN_STD,
        },
        metadata=of_training("how each kind of feature is normalised, as {STATE: MEAN_STD}"),
    )
    gradient_checkpointing: bool = field(
        default=False, metadata=of_training("compute layers twice, and keep less of them")
    )
    compile_model: bool = field(default=False, metadata=NOT_A_FLAG)
    compile_mode: str = field(default="max-autotune", metadata=NOT_A_FLAG)
    optimizer_lr: float = field(default=2.5e-5, metadata=of_training("learning rate"))
    optimizer_betas: list[float] = field(
        default_factory=lambda: [0.9, 0.95], metadata=of_training("betas of AdamW")
    )
    optimizer_eps: float = field(default=1e-8, metadata=of_training("epsilon of AdamW"))
    optimizer_weight_decay: float = field(default=0.01, metadata=of_training("weight decay"))
    optimizer_grad_clip_norm: float = field(
        default=1.0, metadata=of_training("gradients are scaled down to this norm")
    )
    scheduler_warmup_steps: int = field(
        default=1000, metadata=of_training("steps of rising learning rate")
    )
    scheduler_decay_steps: int = field(
        default=30_000, metadata=of_training("steps until scheduler_decay_lr")
    )
    scheduler_decay_lr: float = field(default=2.5e-6, metadata=of_training("the last rate"))

    def __post_init__(self) -> None:
        """Forget cameras that are always empty: nothing looks at them, and LeRobot adds them."""
        self.input_features = {
            key: feature
            for key, feature in self.input_features.items()
            if not key.startswith(_EMPTY)
        }

    @property
    def side(self) -> tuple[int, int]:
        """Height and width of what is seen."""
        height, width = self.image_resolution
        return height, width

    def made_for(self, interface: Interface, renames: Mapping[str, str], use: Use) -> Self:
        """Take pictures of any size, and to be trained, states and actions too."""
        return in_sizes_of(interface, self, renames, use)

    @property
    def recalls(self) -> bool:
        """It does where what is left of a chunk leads the next."""
        return read_rtc(self.rtc_config) is not None

    @property
    def is_told(self) -> bool:
        """Always: its prompt has the task's words."""
        return True

    def processing(self, usual: UsualSteps) -> tuple[Sequence[Step], Sequence[Step]]:
        """As LeRobot: the state stays out of the words, and is normalised after they are read."""
        from proctor.policies.lerobot.language import Pi0NewLine

        before = usual.rename, usual.to_batch, Pi0NewLine(), self.tokenize(), usual.to_device
        return (*before, self.relative(), usual.normalize), self.behind(usual)

    @property
    def words_by(self) -> str:
        """Folder or Hub id of what a new policy's words are numbered by."""
        return PALIGEMMA

    def tokenize(self) -> Step:
        """Return what numbers the words."""
        from proctor.policies.lerobot.language import Tokenize

        return Tokenize(max_length=self.tokenizer_max_length, tokenizer_name=self.words_by)

    def relative(self) -> Step:
        """Return what tells actions from where the robot is, where that is asked for."""
        from proctor.policies.lerobot.relative import RelativeActions

        return RelativeActions(
            self.use_relative_actions, self.relative_exclude_joints, self.action_feature_names
        )

    def behind(self, usual: UsualSteps) -> Sequence[Step]:
        """Return the steps behind the network."""
        from proctor.policies.lerobot.relative import AbsoluteActions

        return usual.unnormalize, AbsoluteActions(self.use_relative_actions), usual.to_cpu

    def samples(self) -> Samples:
        """One observation, and the chunk of actions from there on."""
        return Samples(action_steps=range(self.chunk_size))

    def training_preset(self) -> TrainingPreset:
        """AdamW, its rate rising and then falling as a cosine."""
        return cosine_preset(self)

    def validate(self) -> None:
        """Check the family's own rules too: names of models, chunk arithmetic, what is seen."""
        super().validate()
        check_sizes(
            self,
            {
                "chunk_size": MOST_STEPS,
                "max_state_dim": MOST_WIDTH,
                "max_action_dim": MOST_WIDTH,
                "tokenizer_max_length": _MOST_TOKENS,
            },
        )
        for name in ("paligemma_variant", "action_expert_variant"):
            _choose(name, getattr(self, name), tuple(GEMMAS))
        if self.dtype == "float16":
            raise UsageError(
                "dtype is 'float16', which has not the range of what it was trained in; choose "
                "float32 or bfloat16, as in LeRobot"
            )
        _choose("dtype", self.dtype, _PRECISIONS)
        if self.n_obs_steps != 1:
            raise UsageError(f"{self.type} looks at one observation; not {self.n_obs_steps}")
        if not 1 <= self.n_action_steps <= self.chunk_size:
            raise UsageError(
                f"n_action_steps is {self.n_action_steps} (choose 1-{self.chunk_size}, the chunk)"
            )
        self._validate_inputs()

    def _validate_inputs(self) -> None:
        sides, patch = self.image_resolution, VISION.patch_size
        if len(sides) != 2 or sides[0] != sides[1] or not patch <= sides[0] <= MOST_PIXELS:
            raise UsageError(f"image_resolution is {sides}, expected a square of at least {patch}")
        if not self.cameras:
            raise UsageError(f"{self.type} needs a camera as input")
        if self.state_dim is None:
            raise UsageError(f"{self.type} needs observation.state as input")
        if self.state_dim > self.max_state_dim:
            raise UsageError(f"max_state_dim is {self.max_state_dim}, states have {self.state_dim}")
        if self.action_dim > self.max_action_dim:
            raise UsageError(
                f"max_action_dim is {self.max_action_dim}, actions have {self.action_dim}"
            )


def _choose(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name} is {value!r} (choose {', '.join(known)})")


@dataclass
class FlowConfig(PiConfig):
    """What is added where actions flow from noise."""

    num_inference_steps: int = field(default=10, metadata={"help": "steps from noise to actions"})
    time_sampling_beta_alpha: float = field(
        default=1.5, metadata=of_training("times are learnt from a Beta distribution's: its alpha")
    )
    time_sampling_beta_beta: float = field(
        default=1.0, metadata=of_training("its beta; times are drawn with 1 alone")
    )
    time_sampling_scale: float = field(default=0.999, metadata=of_training("scales these"))
    time_sampling_offset: float = field(default=0.001, metadata=of_training("shifts these"))
    min_period: float = field(default=4e-3, metadata={"help": "shortest wave that tells the time"})
    max_period: float = field(default=4.0, metadata={"help": "longest wave that does"})
    freeze_vision_encoder: bool = field(
        default=False, metadata=of_training("leave what sees as it is")
    )
    train_expert_only: bool = field(
        default=False, metadata=of_training("leave what sees and reads as it is")
    )

    def samples(self) -> Samples:
        """As all of the family; times are drawn by a law that has an inverse."""
        if self.time_sampling_beta_beta != 1:
            raise UsageError(
                f"time_sampling_beta_beta is {self.time_sampling_beta_beta:g}: trained here is "
                "with 1 alone"
            )
        return super().samples()

    def validate(self) -> None:
        """Check what flows, too."""
        super().validate()
        check_sizes(self, {"num_inference_steps": MOST_STEPS})
        if read_rtc(self.rtc_config) is not None and self.use_relative_actions:
            raise UsageError(
                "rtc_config: what is left of a chunk is relative to another state by then; it is "
                "not for use_relative_actions"
            )
        if not 0 < self.min_period < self.max_period:
            raise UsageError(f"min_period is {self.min_period:g}, max_period {self.max_period:g}")
        if self.time_sampling_beta_alpha <= 0:
            raise UsageError(f"time_sampling_beta_alpha is {self.time_sampling_beta_alpha:g}")
        models = [GEMMAS[self.paligemma_variant], GEMMAS[self.action_expert_variant]]
        if len({(m.depth, m.n_heads, m.n_kv_heads, m.head_dim) for m in models}) > 1:
            raise UsageError(
                f"{self.action_expert_variant} cannot look at {self.paligemma_variant}: they "
                "differ in depth or heads"
            )


@dataclass
class Pi0Config(FlowConfig):
    """pi0's fields."""

    type: str = "pi0"


def make(config: FlowConfig, interface: Interface) -> Policy:
    """Make one with fresh random weights for the interface's cameras and state."""
    from proctor.policies.lerobot.checkpoint import fresh_policy

    return fresh_policy(PLUGIN, config, interface)


PLUGIN = CheckpointPlugin(
    config=Pi0Config,
    make=make,
    summary="pi0, a vision-language-action model, untrained (trained: --policy.path)",
    network="proctor.policies.pi0.network:Pi0",
    prefix="model.",
    tell_tale=frozenset({"paligemma_variant", "num_inference_steps"}),
)
