"""Configs and plug-ins of GR00T (NVIDIA, 2025): N1.7, and N1.5, LeRobot 0.5.1's ``groot``.

The networks are in network.py, their parts in backbone.py, eagle.py and head.py. NVIDIA's own
folders are read by nvidia.py. No torch here: `--help` reads configs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from proctor.errors import UsageError
from proctor.features import Interface, NormMode
from proctor.fingerprint import LOCAL_PATH
from proctor.policies.base import Policy
from proctor.policies.groot.embodiments import EXECUTED, LIBERO, NEW
from proctor.policies.groot.network.sizes import BASE_MODEL, HORIZON, N15_BASE_MODEL, N15_HORIZON
from proctor.policies.groot.nvidia import (
    NvidiaFolder,
    from_n15_layouts,
    from_nvidia,
    read_folder,
    statistics_of,
)
from proctor.policies.lerobot.config.config import (
    CheckpointConfig,
    CheckpointPlugin,
    run_flag,
    setting,
    training_setting,
    unused,
)
from proctor.policies.lerobot.config.mixins import (
    RTC_HELP,
    ChunkMixin,
    ImageSizeFreeMixin,
    LanguageConfig,
    RtcMixin,
    read_rtc,
)
from proctor.policies.lerobot.config.presets import (
    POSE_SIZE,
    RelativeChunks,
    SampleWindows,
    ScheduleSettings,
    TrainingPreset,
    adam_settings,
)
from proctor.policies.lerobot.config.shared_fields import normalization, optimizer_betas, shared
from proctor.policies.lerobot.fresh import make_fresh
from proctor.policies.lerobot.processors.limits import (
    ALLOWED,
    MOST_PROMPT,
    MOST_STEPS,
    STEPS,
    Choices,
    Limits,
    check_one_observation,
    check_padded_sizes,
    require_inputs,
    up_to,
)

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors.processors import StepLists, UsualSteps

TRANSFORMS = ("auto", "none", "libero")
_STEPS, _ENCODE, _DECODE = (
    f"proctor.policies.groot.steps.{name}" for name in ("steps", "encode_step", "decode_steps")
)


def _base_model_path(published: str) -> Any:
    help_text = "base model in NVIDIA's layout: a folder or a Hub id"
    metadata = {"help": help_text, "default_help": published} | LOCAL_PATH
    return field(default=None, metadata=metadata)


def _prompt_length(default: int) -> Any:
    metadata = run_flag("maximum tokens of a prompt, without its images")
    return field(default=default, metadata=metadata | {ALLOWED: up_to(MOST_PROMPT)})


def _upstream_padding() -> Any:
    text = "attend to padding as LeRobot does; results then depend on the longest prompt of a batch"
    return field(default=False, metadata=run_flag(text))


class GrootConfig(ImageSizeFreeMixin, ChunkMixin, LanguageConfig):
    """What the configs of both versions share; each declares the fields at LeRobot's places."""

    if TYPE_CHECKING:
        max_state_dim: int
        max_action_dim: int
        base_model_path: str | None
        embodiment_tag: str
        tune_llm: bool
        tune_visual: bool
        tune_projector: bool
        tune_diffusion_model: bool
        warmup_ratio: float
        max_steps: int
        use_bf16: bool
        tokenizer_max_length: int
        upstream_padding: bool

    @property
    def action_horizon(self) -> int:
        """Actions of a chunk."""
        raise NotImplementedError

    @property
    def warmup_steps(self) -> int:
        """Warm-up steps of the learning rate."""
        return math.ceil(self.max_steps * self.warmup_ratio)

    def validate(self) -> None:
        """Also check inputs and the chunk."""
        super().validate()
        check_one_observation(self)
        require_inputs(self, state=True, camera=True)
        check_padded_sizes(self)
        self.check_chunk()


@dataclass
class GrootN17Config(RtcMixin, GrootConfig):
    """GR00T N1.7's fields, in LeRobot's order and with LeRobot 0.6's defaults."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Observations and actions": "embodiment_tag action_decode_transform use_relative_actions "
        "relative_exclude_joints relative_poses",
        "Inference": "num_inference_timesteps rtc_ramp_rate use_bf16 upstream_padding",
    }

    type: str = "groot"
    chunk_size: int = shared("chunk_size", HORIZON)
    n_action_steps: int = shared("n_action_steps", HORIZON, STEPS)
    max_state_dim: int = shared("max_state_dim", 132)
    max_action_dim: int = shared("max_action_dim", 132)
    normalization_mapping: dict[str, NormMode] = normalization(
        VISUAL=NormMode.IDENTITY, STATE=NormMode.IDENTITY, ACTION=NormMode.IDENTITY
    )
    base_model_path: str | None = _base_model_path(BASE_MODEL)
    action_decode_transform: str | None = setting(
        "auto",
        "change of decoded actions: libero (gripper to -1 or 1), none, or auto (libero for the "
        "embodiment libero_sim)",
    )
    embodiment_tag: str = shared("embodiment_tag", NEW)
    tune_llm: bool = shared("tune_llm")
    tune_visual: bool = shared("tune_visual")
    tune_projector: bool = shared("tune_projector")
    tune_diffusion_model: bool = shared("tune_diffusion_model")
    tune_vlln: bool = training_setting(
        True, "train the norm and the self-attention after the backbone"
    )
    tune_top_llm_layers: int = training_setting(
        0, "train this many of the language model's last layers", Limits(0, 200)
    )
    num_inference_timesteps: int | None = setting(
        None, "denoising steps per inference", up_to(1000), default_help="the base model's, 4"
    )
    rtc_ramp_rate: float | None = setting(
        None,
        "real-time chunking: rate at which new actions become free of the old chunk",
        Limits(1e-6, 1000),
        default_help="the base model's, 6",
    )
    use_flash_attention: bool = unused(False)
    use_relative_actions: bool = setting(
        False, "learn actions relative to the state at the start of a chunk"
    )
    relative_exclude_joints: list[str] = training_setting(
        [],
        "action dimensions that stay absolute, by parts of their names, as [gripper]",
        default_help="all are relative",
    )
    optimizer_lr: float = shared("optimizer_lr", 1e-4)
    optimizer_betas: list[float] = optimizer_betas(0.9, 0.999)
    optimizer_eps: float = shared("optimizer_eps")
    optimizer_weight_decay: float = shared("optimizer_weight_decay", 1e-5)
    warmup_ratio: float = shared("warmup_ratio")
    use_bf16: bool = shared("use_bf16")
    model_params_fp32: bool = training_setting(True, "train float32 weights; false: as in the file")
    image_size: list[int] = unused([256, 256])
    tokenizer_assets_repo: str | None = setting(
        None, "tokenizer of GR00T N1.5; N1.7 has none", default_help="none"
    )
    lora_rank: int = unused(0)
    lora_alpha: int = unused(16)
    lora_dropout: float = unused(0.1)
    lora_full_model: bool = unused(False)
    video_backend: str = unused("decord")
    balance_dataset_weights: bool = unused(True)
    balance_trajectory_weights: bool = unused(True)
    dataset_paths: list[str] | None = unused(None)
    output_dir: str = unused("./tmp/gr00t")
    save_steps: int = unused(1000)
    max_steps: int = training_setting(
        10_000, "training steps that warmup_ratio refers to", up_to(10**9)
    )
    batch_size: int = unused(32)
    dataloader_num_workers: int = unused(8)
    report_to: str = unused("wandb")
    resume: bool = unused(False)
    rtc_config: dict[str, Any] | None = field(
        default=None, metadata=run_flag(RTC_HELP, default_help="off")
    )
    tokenizer_max_length: int = _prompt_length(128)
    upstream_padding: bool = _upstream_padding()
    relative_poses: list[int] = field(
        default_factory=list,
        metadata=run_flag(
            "with use_relative_actions: dimensions of state and action at which an end-effector "
            "pose starts (x, y, z, two rows of the rotation matrix), as [0]",
            default_help="no poses",
        ),
    )
    action_feature_names: list[str] | None = field(
        default=None, metadata=run_flag("") | {"hidden": True}
    )

    def __post_init__(self) -> None:
        """Replace N1.5's former defaults by N1.7's, as LeRobot does."""
        former = {
            "max_state_dim": (64, 132),
            "max_action_dim": (32, 132),
            "chunk_size": (50, 40),
            "n_action_steps": (50, 40),
        }
        for name, (old, new) in former.items():
            if getattr(self, name) == old:
                setattr(self, name, new)

    @property
    def folder(self) -> NvidiaFolder | None:
        """The base model's processor settings, if it is a local folder in NVIDIA's layout."""
        return read_folder(self.base_model_path)

    @property
    def action_horizon(self) -> int:
        """Actions of a chunk."""
        stated = None if self.folder is None else self.folder.horizon(self.embodiment_tag)
        return min(self.chunk_size, stated or HORIZON)

    @property
    def replan_steps(self) -> int:
        """Actions executed before the next inference."""
        executed = EXECUTED.get(self.embodiment_tag, self.n_action_steps)
        known = self.folder is not None and self.folder.horizon(self.embodiment_tag)
        return min(self.n_action_steps, self.action_horizon, executed if known else MOST_STEPS)

    @property
    def relative_chunks(self) -> RelativeChunks | None:
        """The relative actions, unless the base model has statistics of its own."""
        known = self.folder is not None and self.embodiment_tag in self.folder.embodiments
        if known or not self.use_relative_actions:
            return None
        return RelativeChunks(HORIZON, tuple(sorted(self.relative_poses)))

    @property
    def transform(self) -> str | None:
        """The transform of decoded actions; None: none."""
        stated = self.action_decode_transform
        if stated == "auto":
            return "libero" if self.embodiment_tag == LIBERO else None
        return stated if stated == "libero" else None

    def processing(self, usual: UsualSteps) -> StepLists:
        """Return GR00T's own steps, with the base model's statistics or the dataset's."""
        from proctor.policies.groot.steps.pipelines import make_steps

        pack, encode, decode = make_steps(self, usual)
        before = usual.rename, usual.to_batch, pack, encode, usual.to_device
        return before, (decode, usual.to_cpu)

    def defines_processors(self, folder: Path) -> bool:
        """Whether ``folder`` is the base model itself, in NVIDIA's layout."""
        return self.folder is not None and self.folder.path.resolve() == folder.resolve()

    def samples(self) -> SampleWindows:
        """Return one observation and a whole chunk of actions from there on."""
        horizon = self.action_horizon
        return SampleWindows(action_steps=range(horizon), drop_last=horizon - 1)

    def training_preset(self) -> TrainingPreset:
        """Return AdamW with a warm-up and a cosine decay to 0."""
        schedule = ScheduleSettings(
            type="diffuser",
            name="cosine",
            num_warmup_steps=self.warmup_steps,
        )
        return TrainingPreset(adam_settings(self, "adamw", grad_clip_norm=1.0), schedule)

    def validate(self) -> None:
        """Also check poses, and refuse N1.5's files."""
        super().validate()
        read_rtc(self.rtc_config)
        if self.tokenizer_assets_repo is not None:
            raise UsageError(
                "tokenizer_assets_repo is set, so this is GR00T N1.5: use --policy.type=groot_n15",
                code="policy.unsupported-version",
            )
        self._check_poses()
        Choices((*TRANSFORMS, "")).check(
            "action_decode_transform", self.action_decode_transform or ""
        )

    def _check_poses(self) -> None:
        """Refuse poses that overlap or do not fit into state and action."""
        starts = sorted(self.relative_poses)
        if starts and not self.use_relative_actions:
            raise UsageError("relative_poses needs use_relative_actions=true", code="flag.conflict")
        ends = [*starts[1:], min(self.state_dim or 0, self.action_dim)]
        for start, end in zip(starts, ends, strict=False):
            if start < 0 or start + POSE_SIZE > end:
                raise UsageError(
                    f"relative_poses: {POSE_SIZE} numbers from {start} on do not fit before {end} "
                    f"(state {self.state_dim}, action {self.action_dim})",
                    code="policy.out-of-range",
                )


@dataclass
class GrootN15Config(GrootConfig):
    """GR00T N1.5's fields, in the order and with the defaults of LeRobot 0.5.1."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Observations and actions": "embodiment_tag",
        "Inference": "use_bf16 upstream_padding",
    }
    file_type: ClassVar[str | None] = "groot"

    type: str = "groot_n15"
    chunk_size: int = shared("chunk_size", 50)
    n_action_steps: int = shared("n_action_steps", 50, STEPS)
    max_state_dim: int = shared("max_state_dim", 64)
    max_action_dim: int = shared("max_action_dim", 32)
    normalization_mapping: dict[str, NormMode] = normalization(
        VISUAL=NormMode.IDENTITY, STATE=NormMode.MEAN_STD, ACTION=NormMode.MEAN_STD
    )
    image_size: list[int] = unused([224, 224])
    base_model_path: str | None = _base_model_path(N15_BASE_MODEL)
    tokenizer_assets_repo: str = setting(
        "lerobot/eagle2hg-processor-groot-n1p5", "tokenizer of new policies: a folder or a Hub id"
    )
    embodiment_tag: str = shared("embodiment_tag", NEW)
    tune_llm: bool = shared("tune_llm")
    tune_visual: bool = shared("tune_visual")
    tune_projector: bool = shared("tune_projector")
    tune_diffusion_model: bool = shared("tune_diffusion_model")
    lora_rank: int = unused(0)
    lora_alpha: int = unused(16)
    lora_dropout: float = unused(0.1)
    lora_full_model: bool = unused(False)
    optimizer_lr: float = shared("optimizer_lr", 1e-4)
    optimizer_betas: list[float] = optimizer_betas(0.95, 0.999)
    optimizer_eps: float = shared("optimizer_eps")
    optimizer_weight_decay: float = shared("optimizer_weight_decay", 1e-5)
    warmup_ratio: float = shared("warmup_ratio")
    use_bf16: bool = shared("use_bf16")
    video_backend: str = unused("decord")
    balance_dataset_weights: bool = unused(True)
    balance_trajectory_weights: bool = unused(True)
    dataset_paths: list[str] | None = unused(None)
    output_dir: str = unused("./tmp/gr00t")
    save_steps: int = unused(1000)
    max_steps: int = training_setting(
        10_000,
        "training steps until the learning rate is a tenth; warmup_ratio refers to them",
        up_to(10**9),
    )
    batch_size: int = unused(32)
    dataloader_num_workers: int = unused(8)
    report_to: str = unused("wandb")
    resume: bool = unused(False)
    tokenizer_max_length: int = _prompt_length(192)
    upstream_padding: bool = _upstream_padding()

    @property
    def action_horizon(self) -> int:
        """Actions of a chunk."""
        return min(self.chunk_size, N15_HORIZON)

    @property
    def replan_steps(self) -> int:
        """Actions executed before the next inference."""
        return min(self.n_action_steps, self.action_horizon)

    def processing(self, usual: UsualSteps) -> StepLists:
        """Return N1.5's own steps, with the base model's statistics or the dataset's."""
        from proctor.policies.groot.steps.pipelines import make_n15_steps

        pack, encode, collate, unpack = make_n15_steps(self, usual)
        before = usual.rename, usual.to_batch, pack, encode, collate, usual.to_device
        return before, (unpack, usual.to_cpu)

    def defines_processors(self, folder: Path) -> bool:
        """Whether ``folder`` is the base model itself, with statistics in NVIDIA's layout."""
        base = self.base_model_path
        is_base = base is not None and Path(base).resolve() == folder.resolve()
        return is_base and statistics_of(base, self.embodiment_tag) is not None

    def samples(self) -> SampleWindows:
        """Return one observation and a whole chunk of actions from there on."""
        return SampleWindows(action_steps=range(self.action_horizon))

    def training_preset(self) -> TrainingPreset:
        """Return AdamW with a warm-up and a cosine decay to a tenth."""
        schedule = ScheduleSettings(
            type="cosine_decay_with_warmup",
            num_warmup_steps=self.warmup_steps,
            num_decay_steps=self.max_steps,
            peak_lr=self.optimizer_lr,
            decay_lr=self.optimizer_lr * 0.1,
        )
        return TrainingPreset(adam_settings(self, "adamw", grad_clip_norm=1.0), schedule)


def make(config: CheckpointConfig, interface: Interface) -> Policy:
    """Make a policy from the base model that a flag names, else with random weights."""
    usual = type(config)()
    given = {
        f.name: getattr(config, f.name)
        for f in fields(config)
        if getattr(config, f.name) != getattr(usual, f.name)
    }
    path = given.pop("base_model_path", None)
    if path is None or config.input_features:
        return make_fresh(config, interface)
    from proctor.policies.lerobot.checkpoint.checkpoint import load_policy

    return load_policy(path, None, given, interface)


PLUGIN = CheckpointPlugin(
    config=GrootN17Config,
    make=make,
    summary="GR00T N1.7, untrained or with --policy.base_model_path (trained: --policy.path)",
    network="proctor.policies.groot.network.network:GrootN17",
    prefix="_groot_model.",
    steps={
        "groot_n1_7_pack_inputs_v1": f"{_STEPS}:PackInputs",
        "groot_n1_7_vlm_encode_v1": f"{_ENCODE}:VlmEncode",
        "groot_n1_7_action_decode_v1": f"{_DECODE}:ActionDecode",
        "groot_action_unpack_unnormalize_v2": f"{_DECODE}:ActionUnpack",
    },
    signature_fields=frozenset({"tune_diffusion_model", "base_model_path", "embodiment_tag"}),
    foreign=from_nvidia,
)
N15_PLUGIN = CheckpointPlugin(
    config=GrootN15Config,
    make=make,
    summary="GR00T N1.5, untrained or with --policy.base_model_path (trained: --policy.path)",
    network="proctor.policies.groot.network.network:GrootN15",
    prefix="_groot_model.",
    steps={
        "groot_pack_inputs_v3": f"{_STEPS}:PackInputsV3",
        "groot_eagle_encode_v3": f"{_ENCODE}:EagleEncode",
        "groot_eagle_collate_v3": f"{_ENCODE}:EagleCollate",
        "groot_action_unpack_unnormalize_v1": f"{_DECODE}:ActionUnpackV1",
    },
    signature_fields=frozenset({"type"}),  # ``foreign`` tells files without a type apart
    foreign=from_n15_layouts,
)
