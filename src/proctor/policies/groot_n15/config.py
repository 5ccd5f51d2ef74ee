"""Config and plug-in of GR00T N1.5, which LeRobot 0.5.1 calls ``groot``.

The network is in network.py. NVIDIA's own folders are read by nvidia.py. No torch here: `--help`
reads configs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from proctor.errors import UsageError
from proctor.features import NormMode
from proctor.fingerprint import LOCAL_PATH, UNSAVED
from proctor.policies.groot.from_base import make
from proctor.policies.groot.input_checks import check_inputs
from proctor.policies.groot_n15.embodiments import NEW
from proctor.policies.groot_n15.nvidia import from_other_layouts, statistics_of
from proctor.policies.lerobot import shared_fields as shared
from proctor.policies.lerobot.config import CheckpointPlugin
from proctor.policies.lerobot.config_mixins import ChunkMixin
from proctor.policies.lerobot.image_size_free import ImageSizeFreeMixin
from proctor.policies.lerobot.language_config import LanguageConfig
from proctor.policies.lerobot.limits import MOST_STEPS, MOST_WIDTH, check_sizes
from proctor.policies.lerobot.presets import (
    SampleWindows,
    ScheduleSettings,
    TrainingPreset,
    adam_settings,
)
from proctor.policies.lerobot.shared_fields import training_setting, unused
from proctor.settings import setting

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors import UsualSteps
    from proctor.policies.lerobot.step import ProcessorStep

NATIVE_HORIZON = 16
"""Actions that N1.5 predicts."""
_MOST = {
    "chunk_size": MOST_STEPS,
    "n_action_steps": MOST_STEPS,
    "max_state_dim": MOST_WIDTH,
    "max_action_dim": MOST_WIDTH,
    "tokenizer_max_length": 4096,
    "max_steps": 10**9,
}
_STEPS = "proctor.policies.groot_n15.steps"


@dataclass
class GrootN15Config(ImageSizeFreeMixin, ChunkMixin, LanguageConfig):
    """GR00T N1.5's fields, in the order and with the defaults of LeRobot 0.5.1."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Observations and actions": "embodiment_tag",
        "Inference": "use_bf16 upstream_padding",
    }
    file_type: ClassVar[str | None] = "groot"

    type: str = "groot_n15"
    chunk_size: int = shared.chunk_size(50)
    n_action_steps: int = shared.n_action_steps(50)
    max_state_dim: int = shared.max_state_dim(64)
    max_action_dim: int = shared.max_action_dim(32)
    normalization_mapping: dict[str, NormMode] = shared.normalization(
        VISUAL=NormMode.IDENTITY, STATE=NormMode.MEAN_STD, ACTION=NormMode.MEAN_STD
    )
    image_size: list[int] = unused([224, 224])
    base_model_path: str | None = setting(
        None,
        "base model in NVIDIA's layout: a folder or a Hub id (default: nvidia/GR00T-N1.5-3B)",
        LOCAL_PATH,
    )
    tokenizer_assets_repo: str = setting(
        "lerobot/eagle2hg-processor-groot-n1p5", "tokenizer of new policies: a folder or a Hub id"
    )
    embodiment_tag: str = setting(NEW, "embodiment: the kind of robot, with weights of its own")
    tune_llm: bool = training_setting(False, "train the language model")
    tune_visual: bool = training_setting(False, "train the vision encoder")
    tune_projector: bool = training_setting(
        True, "train the encoders of states and actions and the decoder of actions"
    )
    tune_diffusion_model: bool = training_setting(True, "train the diffusion transformer")
    lora_rank: int = unused(0)
    lora_alpha: int = unused(16)
    lora_dropout: float = unused(0.1)
    lora_full_model: bool = unused(False)
    optimizer_lr: float = shared.optimizer_lr(1e-4)
    optimizer_betas: list[float] = shared.optimizer_betas(0.95, 0.999)
    optimizer_eps: float = shared.optimizer_eps()
    optimizer_weight_decay: float = shared.optimizer_weight_decay(1e-5)
    warmup_ratio: float = training_setting(
        0.05, "warm-up of the learning rate as a share of max_steps"
    )
    use_bf16: bool = setting(True, "compute in bfloat16 (torch.autocast) with float32 weights")
    video_backend: str = unused("decord")
    balance_dataset_weights: bool = unused(True)
    balance_trajectory_weights: bool = unused(True)
    dataset_paths: list[str] | None = unused(None)
    output_dir: str = unused("./tmp/gr00t")
    save_steps: int = unused(1000)
    max_steps: int = training_setting(
        10_000, "training steps until the learning rate is a tenth; warmup_ratio refers to them"
    )
    batch_size: int = unused(32)
    dataloader_num_workers: int = unused(8)
    report_to: str = unused("wandb")
    resume: bool = unused(False)
    tokenizer_max_length: int = setting(
        192, "maximum tokens of a prompt, without its images", UNSAVED
    )
    upstream_padding: bool = setting(
        False,
        "attend to padding as LeRobot does; results then depend on the longest prompt of a batch",
        UNSAVED,
    )

    @property
    def action_horizon(self) -> int:
        """Actions of a chunk."""
        return min(self.chunk_size, NATIVE_HORIZON)

    @property
    def replan_steps(self) -> int:
        """Actions executed before the next inference."""
        return min(self.n_action_steps, self.action_horizon)

    def processing(
        self, usual: UsualSteps
    ) -> tuple[Sequence[ProcessorStep], Sequence[ProcessorStep]]:
        """Return N1.5's own steps, with the base model's statistics or the dataset's."""
        from proctor.policies.groot_n15.pipelines import make_steps

        pack, encode, collate, unpack = make_steps(self, usual)
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
            num_warmup_steps=math.ceil(self.max_steps * self.warmup_ratio),
            num_decay_steps=self.max_steps,
            peak_lr=self.optimizer_lr,
            decay_lr=self.optimizer_lr * 0.1,
        )
        return TrainingPreset(adam_settings(self, "adamw", grad_clip_norm=1.0), schedule)

    def validate(self) -> None:
        """Also check GR00T's inputs and sizes."""
        super().validate()
        check_sizes(self, _MOST)
        check_inputs(self)
        self.check_chunk()
        if not 0 <= self.warmup_ratio <= 1:
            raise UsageError(
                f"warmup_ratio is {self.warmup_ratio:g} (choose 0 to 1)",
                code="policy.out-of-range",
            )


PLUGIN = CheckpointPlugin(
    config=GrootN15Config,
    make=make,
    summary="GR00T N1.5, untrained or with --policy.base_model_path (trained: --policy.path)",
    network="proctor.policies.groot_n15.network:GrootN15",
    prefix="_groot_model.",
    steps={
        "groot_pack_inputs_v3": f"{_STEPS}:PackInputsV3",
        "groot_eagle_encode_v3": f"{_STEPS}:EagleEncode",
        "groot_eagle_collate_v3": f"{_STEPS}:EagleCollate",
        "groot_action_unpack_unnormalize_v1": f"{_STEPS}:ActionUnpackV1",
    },
    signature_fields=frozenset({"type"}),  # ``foreign`` tells files without a type apart
    foreign=from_other_layouts,
)
