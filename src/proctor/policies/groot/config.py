"""Config and plug-in of GR00T (NVIDIA, 2025), N1.7.

The network is in network.py, its parts are in backbone.py and head.py. NVIDIA's own folders are
read by nvidia.py. No torch here: `--help` reads configs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from proctor.errors import UsageError
from proctor.features import NormMode
from proctor.fingerprint import LOCAL_PATH, UNSAVED
from proctor.policies.groot.embodiments import EXECUTED, LIBERO, NEW
from proctor.policies.groot.from_base import make
from proctor.policies.groot.input_checks import check_inputs, check_poses
from proctor.policies.groot.nvidia import NvidiaFolder, from_nvidia, read_folder
from proctor.policies.lerobot import shared_fields as shared
from proctor.policies.lerobot.config import CheckpointPlugin
from proctor.policies.lerobot.config_mixins import ChunkMixin, RtcMixin
from proctor.policies.lerobot.image_size_free import ImageSizeFreeMixin
from proctor.policies.lerobot.language_config import LanguageConfig
from proctor.policies.lerobot.limits import MOST_STEPS, MOST_WIDTH, check_sizes
from proctor.policies.lerobot.presets import (
    RelativeChunks,
    SampleWindows,
    ScheduleSettings,
    TrainingPreset,
    adam_settings,
)
from proctor.policies.lerobot.rtc_config import HELP as RTC_HELP
from proctor.policies.lerobot.rtc_config import read_rtc
from proctor.policies.lerobot.shared_fields import training_setting, unused
from proctor.settings import setting

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors import UsualSteps
    from proctor.policies.lerobot.step import ProcessorStep

NATIVE_HORIZON = 40
"""Actions that N1.7 predicts at most."""
TRANSFORMS = ("auto", "none", "libero")
_MOST = {
    "chunk_size": MOST_STEPS,
    "n_action_steps": MOST_STEPS,
    "max_state_dim": MOST_WIDTH,
    "max_action_dim": MOST_WIDTH,
    "tokenizer_max_length": 4096,
    "max_steps": 10**9,
}
_STEPS, _DECODE = "proctor.policies.groot.steps", "proctor.policies.groot.decode_steps"


@dataclass
class GrootConfig(ImageSizeFreeMixin, ChunkMixin, RtcMixin, LanguageConfig):
    """GR00T's fields, in LeRobot's order and with LeRobot 0.6's defaults."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Observations and actions": "embodiment_tag action_decode_transform use_relative_actions "
        "relative_exclude_joints relative_poses",
        "Inference": "num_inference_timesteps rtc_ramp_rate use_bf16 upstream_padding",
    }

    type: str = "groot"
    chunk_size: int = shared.chunk_size(NATIVE_HORIZON)
    n_action_steps: int = shared.n_action_steps(NATIVE_HORIZON)
    max_state_dim: int = shared.max_state_dim(132)
    max_action_dim: int = shared.max_action_dim(132)
    normalization_mapping: dict[str, NormMode] = shared.normalization(
        VISUAL=NormMode.IDENTITY, STATE=NormMode.IDENTITY, ACTION=NormMode.IDENTITY
    )
    base_model_path: str | None = setting(
        None,
        "base model in NVIDIA's layout: a folder or a Hub id (default: nvidia/GR00T-N1.7-3B)",
        LOCAL_PATH,
    )
    action_decode_transform: str | None = setting(
        "auto",
        "change of decoded actions: libero (gripper to -1 or 1), none, or auto (libero for "
        "the embodiment libero_sim)",
    )
    embodiment_tag: str = setting(NEW, "embodiment: the kind of robot, with weights of its own")
    tune_llm: bool = training_setting(False, "train the language model")
    tune_visual: bool = training_setting(False, "train the vision encoder")
    tune_projector: bool = training_setting(
        True, "train the encoders of states and actions and the decoder of actions"
    )
    tune_diffusion_model: bool = training_setting(True, "train the diffusion transformer")
    tune_vlln: bool = training_setting(
        True, "train the norm and the self-attention after the backbone"
    )
    tune_top_llm_layers: int = training_setting(
        0, "train this many of the language model's last layers"
    )
    num_inference_timesteps: int | None = setting(
        None, "denoising steps per inference (default: the base model's, 4)"
    )
    rtc_ramp_rate: float | None = setting(
        None,
        "real-time chunking: rate at which new actions become free of the old chunk "
        "(default: the base model's, 6)",
    )
    use_flash_attention: bool = unused(False)
    use_relative_actions: bool = setting(
        False, "learn actions relative to the state at the start of a chunk"
    )
    relative_exclude_joints: list[str] = training_setting(
        [],
        "action dimensions that stay absolute, by parts of their names, as [gripper] "
        "(default: all are relative)",
    )
    optimizer_lr: float = shared.optimizer_lr(1e-4)
    optimizer_betas: list[float] = shared.optimizer_betas(0.9, 0.999)
    optimizer_eps: float = shared.optimizer_eps()
    optimizer_weight_decay: float = shared.optimizer_weight_decay(1e-5)
    warmup_ratio: float = training_setting(
        0.05, "warm-up of the learning rate as a share of max_steps"
    )
    use_bf16: bool = setting(True, "compute in bfloat16 (torch.autocast) with float32 weights")
    model_params_fp32: bool = training_setting(True, "train float32 weights; false: as in the file")
    image_size: list[int] = unused([256, 256])
    tokenizer_assets_repo: str | None = setting(
        None, "tokenizer of GR00T N1.5; N1.7 has none (default: none)"
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
    max_steps: int = training_setting(10_000, "training steps that warmup_ratio refers to")
    batch_size: int = unused(32)
    dataloader_num_workers: int = unused(8)
    report_to: str = unused("wandb")
    resume: bool = unused(False)
    rtc_config: dict[str, Any] | None = setting(None, f"{RTC_HELP} (default: off)", UNSAVED)
    tokenizer_max_length: int = setting(
        128, "maximum tokens of a prompt, without its images", UNSAVED
    )
    upstream_padding: bool = setting(
        False,
        "attend to padding as LeRobot does; results then depend on the longest prompt of a batch",
        UNSAVED,
    )
    relative_poses: list[int] = setting(
        [],
        "with use_relative_actions: dimensions of state and action at which an end-effector "
        "pose starts (x, y, z, two rows of the rotation matrix), as [0] (default: no poses)",
        UNSAVED,
    )
    action_feature_names: list[str] | None = setting(None, "", UNSAVED, hidden=True)

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
        return min(self.chunk_size, stated or NATIVE_HORIZON)

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
        return RelativeChunks(NATIVE_HORIZON, tuple(sorted(self.relative_poses)))

    @property
    def transform(self) -> str | None:
        """The transform of decoded actions; None: none."""
        stated = self.action_decode_transform
        if stated == "auto":
            return "libero" if self.embodiment_tag == LIBERO else None
        return stated if stated == "libero" else None

    def processing(
        self, usual: UsualSteps
    ) -> tuple[Sequence[ProcessorStep], Sequence[ProcessorStep]]:
        """Return GR00T's own steps, with the base model's statistics or the dataset's."""
        from proctor.policies.groot.pipelines import make_steps

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
            num_warmup_steps=math.ceil(self.max_steps * self.warmup_ratio),
        )
        return TrainingPreset(adam_settings(self, "adamw", grad_clip_norm=1.0), schedule)

    def validate(self) -> None:
        """Also check GR00T's inputs and sizes, and refuse N1.5's files."""
        super().validate()
        check_sizes(self, _MOST)
        read_rtc(self.rtc_config)
        if self.tokenizer_assets_repo is not None:
            raise UsageError(
                "tokenizer_assets_repo is set, so this is GR00T N1.5: use --policy.type=groot_n15",
                code="policy.unsupported-version",
            )
        check_inputs(self)
        check_poses(self)
        self.check_chunk()
        self._validate_numbers()

    def _validate_numbers(self) -> None:
        if self.action_decode_transform not in (None, "", *TRANSFORMS):
            raise UsageError(
                f"action_decode_transform is {self.action_decode_transform!r} (choose "
                f"{', '.join(TRANSFORMS)})",
                code="policy.unknown-choice",
            )
        ranges: dict[str, tuple[float, float]] = {
            "tune_top_llm_layers": (0, 200),
            "warmup_ratio": (0, 1),
            "num_inference_timesteps": (1, 1000),
            "rtc_ramp_rate": (1e-6, 1000),
        }
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise UsageError(
                    f"{name} is {value:g} (choose {least:g} to {most:g})",
                    code="policy.out-of-range",
                )


PLUGIN = CheckpointPlugin(
    config=GrootConfig,
    make=make,
    summary="GR00T N1.7, untrained or with --policy.base_model_path (trained: --policy.path)",
    network="proctor.policies.groot.network:Groot",
    prefix="_groot_model.",
    steps={
        "groot_n1_7_pack_inputs_v1": f"{_STEPS}:PackInputs",
        "groot_n1_7_vlm_encode_v1": "proctor.policies.groot.encode_step:VlmEncode",
        "groot_n1_7_action_decode_v1": f"{_DECODE}:ActionDecode",
        "groot_action_unpack_unnormalize_v2": f"{_DECODE}:ActionUnpack",
    },
    signature_fields=frozenset({"tune_diffusion_model", "base_model_path", "embodiment_tag"}),
    foreign=from_nvidia,
)
