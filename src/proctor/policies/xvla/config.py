"""X-VLA, the plug-in: its config and how it is made.

The policy itself (Zheng et al., 2025) is in network.py, its parts in davit.py, reader.py and
transformer.py, what its actions are in actions.py; this file stays light, because `--help` reads
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from proctor.definition import Use, only_for
from proctor.errors import UsageError
from proctor.features import IMAGES, FeatureKind, Interface, NormMode
from proctor.policies.base import Policy
from proctor.policies.lerobot.any_size import in_sizes_of
from proctor.policies.lerobot.config import (
    CheckpointPlugin,
    of_training,
)
from proctor.policies.lerobot.language_config import LanguageConfig
from proctor.policies.lerobot.limits import MOST_PIXELS, MOST_STEPS, MOST_WIDTH, check_sizes
from proctor.policies.lerobot.presets import Samples, TrainingPreset, cosine_preset
from proctor.policies.xvla.florence_config import Florence, read_florence

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors import UsualSteps
    from proctor.policies.lerobot.step import Step

SIZES = {
    "ee6d": (20, 20),
    "joint": (14, 14),
    "agibot_ee6d": (20, 20),
    "franka_joint7": (20, 7),
    "so101_bimanual": (20, 12),
}
"""Numbers of an action in the network and on the robot, by ``action_mode``; beside them is "auto",
whose actions have the robot's length and are filled up in the network."""
_EMPTY = IMAGES + "empty_camera_"
_MOST = {
    "chunk_size": MOST_STEPS,
    "n_action_steps": MOST_STEPS,
    "hidden_size": MOST_WIDTH,
    "depth": 200,
    "num_heads": MOST_WIDTH,
    "num_domains": MOST_STEPS,
    "dim_time": MOST_WIDTH,
    "max_len_seq": 2**20,
    "num_denoising_steps": MOST_STEPS,
    "max_state_dim": MOST_WIDTH,
    "max_action_dim": MOST_WIDTH,
    "tokenizer_max_length": MOST_STEPS,
}


@dataclass
class XVlaConfig(LanguageConfig):
    """X-VLA's fields as in LeRobot; the defaults are LeRobot 0.6's."""

    type: str = "xvla"
    chunk_size: int = field(default=32, metadata={"help": "actions predicted at once"})
    n_action_steps: int = field(
        default=32, metadata={"help": "actions played before the policy is asked again"}
    )
    dtype: str | None = field(
        default="float32",
        metadata={"help": "weights and activations: float32, bfloat16, float16"}
        | only_for(Use.EVALUATION),
    )
    normalization_mapping: dict[str, NormMode] = field(
        default_factory=lambda: {
            "VISUAL": NormMode.IDENTITY,
            "STATE": NormMode.IDENTITY,
            "ACTION": NormMode.IDENTITY,
        },
        metadata=of_training("how each kind of feature is normalised, as {STATE: MEAN_STD}"),
    )
    florence_config: dict[str, Any] = field(
        default_factory=dict,
        metadata=of_training("sizes of its Florence-2, as in transformers (default: large)"),
    )
    tokenizer_name: str = field(
        default="facebook/bart-large", metadata=of_training("Hub id of its tokenizer")
    )
    tokenizer_max_length: int = field(
        default=64, metadata=of_training("tokens of an instruction; the rest is cut")
    )
    tokenizer_padding_side: str = field(
        default="right", metadata=of_training("where an instruction is filled up")
    )
    pad_language_to: str = field(
        default="max_length", metadata=of_training("how far; we fill it up to its most tokens")
    )
    hidden_size: int = field(default=1024, metadata={"help": "width of the transformer"})
    depth: int = field(default=24, metadata={"help": "its layers"})
    num_heads: int = field(default=16, metadata={"help": "its attention heads"})
    mlp_ratio: float = field(default=4.0, metadata={"help": "its hidden layers, times its width"})
    num_domains: int = field(default=30, metadata={"help": "kinds of robots"})
    len_soft_prompts: int = field(default=32, metadata={"help": "soft prompts of each kind"})
    dim_time: int = field(default=32, metadata={"help": "length of the time embedding"})
    max_len_seq: int = field(default=512, metadata={"help": "most tokens of the transformer"})
    use_hetero_proj: bool = field(
        default=False, metadata={"help": "what is seen is projected by kind of robot, too"}
    )
    action_mode: str = field(
        default="ee6d", metadata={"help": f"what actions are: {', '.join((*SIZES, 'auto'))}"}
    )
    num_denoising_steps: int = field(default=10, metadata={"help": "denoising steps"})
    use_proprio: bool = field(default=True, metadata={"help": "looks at the robot's state"})
    max_state_dim: int = field(default=32, metadata={"help": "the state is filled up to this"})
    max_action_dim: int = field(
        default=20, metadata={"help": "of action_mode auto: actions are filled up to this"}
    )
    domain_feature_key: str | None = field(
        default=None, metadata=of_training("null: kinds of robots are no column here")
    )
    resize_imgs_with_padding: list[int] | None = field(
        default=None, metadata={"help": "scale images into [height,width], left and top filled up"}
    )
    num_image_views: int | None = field(
        default=None, metadata={"help": "views it has places for (default: one a camera)"}
    )
    empty_cameras: int = field(default=0, metadata={"help": "views that stay empty"})
    freeze_vision_encoder: bool = field(
        default=False, metadata=of_training("leave the image encoder as it is")
    )
    freeze_language_encoder: bool = field(
        default=False, metadata=of_training("leave what reads as it is")
    )
    train_policy_transformer: bool = field(
        default=True, metadata=of_training("false: of the transformer, soft prompts alone learn")
    )
    train_soft_prompts: bool = field(
        default=True, metadata=of_training("false: soft prompts stay as they are")
    )
    optimizer_lr: float = field(default=1e-4, metadata=of_training("learning rate"))
    optimizer_betas: list[float] = field(
        default_factory=lambda: [0.9, 0.99], metadata=of_training("betas of AdamW")
    )
    optimizer_eps: float = field(default=1e-8, metadata=of_training("epsilon of AdamW"))
    optimizer_weight_decay: float = field(default=0.0, metadata=of_training("weight decay"))
    optimizer_grad_clip_norm: float = field(
        default=10.0, metadata=of_training("gradients are scaled down to this norm")
    )
    optimizer_soft_prompt_lr_scale: float = field(
        default=1.0, metadata=of_training("rate of the soft prompts, times lr")
    )
    optimizer_soft_prompt_warmup_lr_scale: float | None = field(
        default=None, metadata=of_training("that rate instead, for a warm-up")
    )
    scheduler_warmup_steps: int = field(
        default=1_000, metadata=of_training("steps of rising learning rate")
    )
    scheduler_decay_steps: int = field(
        default=30_000, metadata=of_training("steps to the last learning rate")
    )
    scheduler_decay_lr: float = field(default=2.5e-6, metadata=of_training("last learning rate"))

    def __post_init__(self) -> None:
        """Count the cameras that LeRobot names as empty, and look for them nowhere.

        It adds them to the ``empty_cameras`` of a config that it reads again, and so do we.
        """
        seen = {k: f for k, f in self.input_features.items() if not k.startswith(_EMPTY)}
        if len(seen) < len(self.input_features):
            named = sum(f.kind is FeatureKind.VISUAL for f in self.input_features.values())
            self.num_image_views = max(self.num_image_views or 0, named + self.empty_cameras)
            self.input_features = seen

    @property
    def florence(self) -> Florence:
        """The sizes of what sees and reads."""
        return read_florence(self.florence_config)

    @property
    def n_views(self) -> int:
        """How many views it has places for."""
        return max(len(self.cameras) + self.empty_cameras, self.num_image_views or 0)

    @property
    def action_sizes(self) -> tuple[int, int]:
        """Numbers of an action in the network, and on the robot."""
        if self.action_mode == "auto":
            return self.max_action_dim, self.action_dim
        return SIZES[self.action_mode]

    @property
    def picture_size(self) -> tuple[int, int]:
        """Height and width of what is looked at."""
        height, width = (
            self.resize_imgs_with_padding or self.input_features[self.cameras[0]].shape[:2]
        )
        return height, width

    @property
    def state_size(self) -> int:
        """Numbers of the state in the network."""
        return self.max_state_dim if self.use_proprio else 0

    def made_for(self, interface: Interface, renames: Mapping[str, str], use: Use) -> Self:
        """Be trained for any robot, and take pictures of any size where they are scaled."""
        if use is Use.EVALUATION and self.resize_imgs_with_padding is None:
            return self
        return in_sizes_of(interface, self, renames, use)

    def processing(self, usual: UsualSteps) -> tuple[Sequence[Step], Sequence[Step]]:
        """The usual steps; between them a tokenizer, and what X-VLA does to pictures."""
        from proctor.policies.lerobot.language import Tokenize
        from proctor.policies.xvla.steps import AddDomain, ImageNetNormalize, ImageToFloat

        tokenize = Tokenize(
            tokenizer_name=self.tokenizer_name,
            max_length=self.tokenizer_max_length,
            padding=self.pad_language_to,
            padding_side=self.tokenizer_padding_side,
        )
        pictures = ImageToFloat(), ImageNetNormalize(), AddDomain()
        before = (usual.rename, usual.to_batch, tokenize, *pictures)
        return (*before, usual.to_device, usual.normalize), (usual.unnormalize, usual.to_cpu)

    def samples(self) -> Samples:
        """One observation, and a chunk of actions from there on."""
        if self.domain_feature_key is not None:
            raise UsageError(
                "domain_feature_key: kinds of robots come from the policy's pipeline here, and "
                "not from a column; set it to null"
            )
        return Samples(action_steps=range(self.chunk_size))

    def training_preset(self) -> TrainingPreset:
        """AdamW, slow where it sees and reads; a cosine after a warm-up."""
        usual = cosine_preset(self, "xvla-adamw")
        optimizer = replace(
            usual.optimizer,
            soft_prompt_lr_scale=self.optimizer_soft_prompt_lr_scale,
            soft_prompt_warmup_lr_scale=self.optimizer_soft_prompt_warmup_lr_scale,
        )
        return replace(usual, optimizer=optimizer)

    def validate(self) -> None:
        """Check X-VLA's own rules too: actions, views, and that all tokens have a place."""
        super().validate()
        check_sizes(self, _MOST)
        if self.n_action_steps > self.chunk_size:
            raise UsageError(
                f"n_action_steps is {self.n_action_steps} (choose 1-{self.chunk_size})"
            )
        if self.hidden_size % self.num_heads:
            raise UsageError(f"hidden_size {self.hidden_size} does not split into heads")
        if not 0 <= self.len_soft_prompts <= MOST_STEPS or not 0 < self.mlp_ratio <= 64:
            raise UsageError("len_soft_prompts or mlp_ratio cannot be")
        if not 0 <= self.empty_cameras <= 64 or not 0 <= (self.num_image_views or 1) <= 64:
            raise UsageError("empty_cameras or num_image_views cannot be (choose up to 64)")
        self._validate_actions()
        self._validate_inputs()

    def _validate_actions(self) -> None:
        if self.action_mode not in (*SIZES, "auto"):
            known = ", ".join((*SIZES, "auto"))
            raise UsageError(f"action_mode is {self.action_mode!r} (choose {known})")
        size, played = self.action_sizes
        if self.action_dim != played:
            raise UsageError(
                f"action_mode {self.action_mode} gives {played} numbers, and actions have "
                f"{self.action_dim}; action_mode auto takes any"
            )
        if played > size:
            raise UsageError(f"actions have {played} numbers, and max_action_dim is {size}")
        if self.action_mode == "so101_bimanual" and self.state_size != size:
            raise UsageError(f"action_mode so101_bimanual needs max_state_dim {size}")

    def _validate_inputs(self) -> None:
        if not self.cameras:
            raise UsageError("X-VLA needs a camera as input")
        if self.use_proprio and self.state_dim is None:
            raise UsageError("X-VLA needs observation.state as input (or use_proprio=false)")
        resized = self.resize_imgs_with_padding
        if resized is not None and (
            len(resized) != 2 or min(resized) < 1 or max(resized) > MOST_PIXELS
        ):
            raise UsageError(f"resize_imgs_with_padding is {resized}, expected [height, width]")
        shapes = {self.input_features[key].shape for key in self.cameras}
        if resized is None and len(shapes) > 1:
            raise UsageError(
                f"X-VLA's cameras differ in shape ({sorted(shapes)}): say resize_imgs_with_padding"
            )
        view, read = self.florence.tokens(self.picture_size, self.tokenizer_max_length)
        whole = self.chunk_size + read + (self.n_views - 1) * view
        if whole > self.max_len_seq:
            raise UsageError(f"max_len_seq is {self.max_len_seq}, and there are {whole} tokens")


def make(config: XVlaConfig, interface: Interface) -> Policy:
    """Make one with fresh random weights for the interface's cameras and state."""
    from proctor.policies.lerobot.checkpoint import fresh_policy

    return fresh_policy(PLUGIN, config, interface)


PLUGIN = CheckpointPlugin(
    config=XVlaConfig,
    make=make,
    summary="X-VLA, untrained (trained: --policy.path)",
    network="proctor.policies.xvla.network:XVla",
    prefix="model.",
    tell_tale=frozenset({"florence_config", "len_soft_prompts"}),
)
