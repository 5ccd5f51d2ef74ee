"""Config and plug-in of X-VLA (Zheng et al., 2025).

The network is in network.py, its parts are in davit.py, bart.py and transformer.py, its action
spaces in actions.py. No torch here: `--help` reads configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from proctor.errors import UsageError
from proctor.features import IMAGES, FeatureKind, Interface, NormMode
from proctor.fingerprint import EVALUATION_ONLY, ConfigUse
from proctor.policies.base import flag
from proctor.policies.lerobot.config.config import CheckpointPlugin, setting, training_setting
from proctor.policies.lerobot.config.mixins import ChunkMixin, LanguageConfig, with_interface_sizes
from proctor.policies.lerobot.config.presets import XVLA_ADAMW, TrainingPreset, cosine_preset
from proctor.policies.lerobot.config.shared_fields import normalization, optimizer_betas, shared
from proctor.policies.lerobot.fresh import make_fresh
from proctor.policies.lerobot.processors.limits import (
    MOST_STEPS,
    STEPS,
    WIDTH,
    Choices,
    Limits,
    Sides,
    check_divisible,
    require_inputs,
    up_to,
)
from proctor.policies.xvla.florence_config import FlorenceSizes, read_florence

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors.processors import StepLists, UsualSteps

SIZES = {
    "ee6d": (20, 20),
    "joint": (14, 14),
    "agibot_ee6d": (20, 20),
    "franka_joint7": (20, 7),
    "so101_bimanual": (20, 12),
}
"""Length of an action in the network and on the robot, by ``action_mode``.

The mode "auto" takes the robot's length; the network pads it to ``max_action_dim``."""
_STEPS = "proctor.policies.xvla.steps"
_EMPTY = IMAGES + "empty_camera_"


@dataclass
class XVlaConfig(ChunkMixin, LanguageConfig):
    """X-VLA's fields, in LeRobot's order and with LeRobot 0.6's defaults."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Observations and actions": "action_mode use_proprio",
        "Images": "num_image_views",
        "Language": "tokenizer_name tokenizer_padding_side pad_language_to",
        "Inference": "num_denoising_steps",
    }

    type: str = "xvla"
    chunk_size: int = shared("chunk_size", 32)
    n_action_steps: int = shared("n_action_steps", 32, STEPS)
    dtype: str | None = flag(
        "float32",
        "dtype of weights and activations: float32, bfloat16 or float16",
        marks=EVALUATION_ONLY,
    )
    normalization_mapping: dict[str, NormMode] = normalization(
        VISUAL=NormMode.IDENTITY, STATE=NormMode.IDENTITY, ACTION=NormMode.IDENTITY
    )
    florence_config: dict[str, Any] = training_setting(
        {}, "config of the Florence-2 encoder, as in transformers", default_help="Florence-2 large"
    )
    tokenizer_name: str = training_setting(
        "facebook/bart-large", "tokenizer of the prompts: a folder or a Hub id"
    )
    tokenizer_max_length: int = training_setting(
        64, "maximum tokens of a prompt; longer prompts are truncated", STEPS
    )
    tokenizer_padding_side: str = training_setting(
        "right", "padding side of prompts: right or left"
    )
    pad_language_to: str = training_setting(
        "max_length",
        "padding of prompts, max_length or longest, saved for LeRobot; here "
        "prompts are always padded to tokenizer_max_length",
    )
    hidden_size: int = setting(1024, "width of the transformer", WIDTH)
    depth: int = setting(24, "layers of the transformer", up_to(200))
    num_heads: int = setting(16, "attention heads of the transformer", WIDTH)
    mlp_ratio: float = setting(
        4.0, "ratio of the MLPs' width to the transformer's", Limits(0, 64, above=True)
    )
    num_domains: int = setting(
        30, "number of domains (robot types), each with its own soft prompts", STEPS
    )
    len_soft_prompts: int = setting(32, "soft prompt tokens per domain", Limits(0, MOST_STEPS))
    dim_time: int = setting(32, "dimension of the timestep embedding", WIDTH)
    max_len_seq: int = setting(512, "maximum tokens of the transformer", up_to(2**20))
    use_hetero_proj: bool = setting(
        False, "use a separate projection of image features for each domain"
    )
    action_mode: str = setting(
        "ee6d", f"action space: {', '.join((*SIZES, 'auto'))}", Choices((*SIZES, "auto"))
    )
    num_denoising_steps: int = setting(10, "denoising steps per inference", STEPS)
    use_proprio: bool = setting(True, "use the robot's state as input")
    max_state_dim: int = shared("max_state_dim", 32)
    max_action_dim: int = setting(
        20, "with action_mode=auto: length that actions are zero-padded to", WIDTH
    )
    domain_feature_key: str | None = training_setting(
        None, "dataset column with the domain id; only none is supported", default_help="domain 0"
    )
    resize_imgs_with_padding: list[int] | None = setting(
        None,
        "resize images to [height,width] pixels, padded at the left and the top",
        Sides(),
        default_help="no resizing",
    )
    num_image_views: int | None = setting(
        None,
        "camera views of the network; missing ones stay empty",
        Limits(0, 64),
        default_help="one per camera",
    )
    empty_cameras: int = setting(0, "additional camera views that stay empty", Limits(0, 64))
    freeze_vision_encoder: bool = shared("freeze_vision_encoder", False)
    freeze_language_encoder: bool = training_setting(False, "freeze the language encoder")
    train_policy_transformer: bool = training_setting(
        True, "train the policy transformer; false: freeze it, except its soft prompts"
    )
    train_soft_prompts: bool = training_setting(True, "train the soft prompts; false: freeze them")
    optimizer_lr: float = shared("optimizer_lr", 1e-4)
    optimizer_betas: list[float] = optimizer_betas(0.9, 0.99)
    optimizer_eps: float = shared("optimizer_eps")
    optimizer_weight_decay: float = shared("optimizer_weight_decay", 0.0)
    optimizer_grad_clip_norm: float = shared("optimizer_grad_clip_norm", 10.0)
    optimizer_soft_prompt_lr_scale: float = training_setting(
        1.0, "learning rate of the soft prompts, as a multiple of optimizer_lr"
    )
    optimizer_soft_prompt_warmup_lr_scale: float | None = training_setting(
        None,
        "learning rate of the soft prompts in the warm-up, as a multiple of optimizer_lr",
        default_help="optimizer_soft_prompt_lr_scale",
    )
    scheduler_warmup_steps: int = shared("scheduler_warmup_steps", 1_000)
    scheduler_decay_steps: int = shared("scheduler_decay_steps")
    scheduler_decay_lr: float = shared("scheduler_decay_lr")

    def __post_init__(self) -> None:
        """Drop the empty cameras that LeRobot adds to the inputs, but count them as views.

        LeRobot adds them to ``empty_cameras`` when it reads such a config again; so do we.
        """
        real = {k: f for k, f in self.input_features.items() if not k.startswith(_EMPTY)}
        if len(real) < len(self.input_features):
            named = sum(f.kind is FeatureKind.VISUAL for f in self.input_features.values())
            self.num_image_views = max(self.num_image_views or 0, named + self.empty_cameras)
            self.input_features = real

    @property
    def florence(self) -> FlorenceSizes:
        """Sizes of the Florence-2 encoder."""
        return read_florence(self.florence_config)

    @property
    def n_views(self) -> int:
        """Number of camera views, empty ones included."""
        return max(len(self.cameras) + self.empty_cameras, self.num_image_views or 0)

    @property
    def action_sizes(self) -> tuple[int, int]:
        """Length of an action in the network, and on the robot."""
        if self.action_mode == "auto":
            return self.max_action_dim, self.action_dim
        return SIZES[self.action_mode]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the image encoder's input."""
        height, width = (
            self.resize_imgs_with_padding or self.input_features[self.cameras[0]].shape[:2]
        )
        return height, width

    @property
    def state_size(self) -> int:
        """Length of the state in the network."""
        return self.max_state_dim if self.use_proprio else 0

    def for_interface(
        self, interface: Interface, renames: Mapping[str, str], use: ConfigUse
    ) -> Self:
        """Accept any robot in training, and images of any size if the policy resizes them."""
        if use is ConfigUse.EVALUATION and self.resize_imgs_with_padding is None:
            return self
        return with_interface_sizes(interface, self, renames, use)

    def processing(self, usual: UsualSteps) -> StepLists:
        """Return the usual processor steps, a tokenizer step and X-VLA's image steps."""
        from proctor.policies.lerobot.tokenizer.language import Tokenize
        from proctor.policies.xvla.steps import AddDomain, ImageNetNormalize, ImageToFloat

        tokenize = Tokenize(
            tokenizer_name=self.tokenizer_name,
            max_length=self.tokenizer_max_length,
            padding=self.pad_language_to,
            padding_side=self.tokenizer_padding_side,
        )
        own = ImageToFloat(), ImageNetNormalize(), AddDomain()
        before = (usual.rename, usual.to_batch, tokenize, *own)
        return (*before, usual.to_device, usual.normalize), (usual.unnormalize, usual.to_cpu)

    def training_preset(self) -> TrainingPreset:
        """Return X-VLA's AdamW with a warm-up and a cosine decay."""
        usual = cosine_preset(self, XVLA_ADAMW)
        optimizer = replace(
            usual.optimizer,
            soft_prompt_lr_scale=self.optimizer_soft_prompt_lr_scale,
            soft_prompt_warmup_lr_scale=self.optimizer_soft_prompt_warmup_lr_scale,
        )
        return replace(usual, optimizer=optimizer)

    def validate(self) -> None:
        """Also check X-VLA's action space, views and number of tokens."""
        super().validate()
        self.check_chunk()
        check_divisible(self, "hidden_size", "num_heads")
        self._validate_actions()
        self._validate_inputs()

    def _validate_actions(self) -> None:
        size, executed = self.action_sizes
        if self.action_dim != executed:
            raise UsageError(
                f"action_mode {self.action_mode} has {executed} action dimensions, the robot has "
                f"{self.action_dim}; action_mode auto accepts any",
                code="policy.action-size-mismatch",
            )
        if executed > size:
            raise UsageError(
                f"max_action_dim is {size}, actions have {executed}",
                code="policy.action-size-mismatch",
            )
        if self.action_mode == "so101_bimanual" and self.state_size != size:
            raise UsageError(
                f"action_mode so101_bimanual needs max_state_dim {size}",
                code="policy.state-size-mismatch",
            )

    def _validate_inputs(self) -> None:
        require_inputs(self, camera=True)
        if self.use_proprio and self.state_dim is None:
            raise UsageError(
                "X-VLA needs observation.state as input (or use_proprio=false)",
                code="policy.missing-input",
            )
        shapes = {self.input_features[key].shape for key in self.cameras}
        if self.resize_imgs_with_padding is None and len(shapes) > 1:
            raise UsageError(
                f"X-VLA's cameras differ in shape ({sorted(shapes)}): set resize_imgs_with_padding",
                code="policy.camera-shapes-differ",
            )
        view, encoded = self.florence.tokens(self.image_size, self.tokenizer_max_length)
        whole = self.chunk_size + encoded + (self.n_views - 1) * view
        if whole > self.max_len_seq:
            raise UsageError(
                f"max_len_seq is {self.max_len_seq}, but the policy has {whole} tokens",
                code="policy.too-many-tokens",
            )


PLUGIN = CheckpointPlugin(
    config=XVlaConfig,
    summary="X-VLA, untrained (trained: --policy.path)",
    network="proctor.policies.xvla.network:XVla",
    prefix="model.",
    steps={
        "xvla_image_to_float": f"{_STEPS}:ImageToFloat",
        "xvla_image_scale": f"{_STEPS}:ImageScale",
        "xvla_imagenet_normalize": f"{_STEPS}:ImageNetNormalize",
        "xvla_add_domain_id": f"{_STEPS}:AddDomain",
        "xvla_rotation_6d_to_axis_angle": f"{_STEPS}:AxisAngle",
    },
    optimizers={XVLA_ADAMW: "proctor.policies.xvla.network:parameter_groups"},
    signature_fields=frozenset({"florence_config", "len_soft_prompts"}),
    make=make_fresh,
)
