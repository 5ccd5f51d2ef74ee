"""Mixins for the configs of several policy families; each family declares the fields itself.

Real-time chunking is in policies/blocks/rtc.py; ``RtcConfig`` holds its settings.

No torch here: `--help` reads configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import msgspec

from proctor.errors import UsageError
from proctor.features import ACTION, Interface
from proctor.fingerprint import EVALUATION_ONLY, ConfigUse
from proctor.policies.compatibility import adopt_feature_sizes
from proctor.policies.lerobot.config.config import CheckpointConfig, ConfigT, run_flag
from proctor.policies.lerobot.config.presets import (
    SampleWindows,
    ScheduleSettings,
    TrainingPreset,
    adam_settings,
    cosine_preset,
)
from proctor.policies.lerobot.processors.limits import (
    Limits,
    check_one_observation,
    check_padded_sizes,
    require_inputs,
    up_to,
)


class ChunkMixin:
    """A policy that predicts ``chunk_size`` actions from one observation."""

    chunk_size: int
    n_action_steps: int

    def samples(self) -> SampleWindows:
        """Return one observation and the chunk of actions from there on."""
        return SampleWindows(action_steps=range(self.chunk_size))

    def check_chunk(self) -> None:
        """Refuse to execute more actions than a chunk has."""
        up_to(self.chunk_size).check("n_action_steps", self.n_action_steps)


class DenoisingMixin:
    """A policy that denoises a horizon of actions, trained by Adam with a diffuser schedule."""

    horizon: int
    n_obs_steps: int
    n_action_steps: int
    num_train_timesteps: int
    num_inference_steps: int | None
    drop_n_last_frames: int | None
    scheduler_name: str
    scheduler_warmup_steps: int

    def samples(self) -> SampleWindows:
        """Return the last observations, and a horizon of actions from the oldest of them on."""
        first = 1 - self.n_obs_steps
        return SampleWindows(
            action_steps=range(first, first + self.horizon),
            observation_steps=range(first, 1),
            drop_last=self.drop_n_last_frames or 0,
        )

    def training_preset(self) -> TrainingPreset:
        """Return Adam, with the named schedule after a warm-up."""
        schedule = ScheduleSettings(
            type="diffuser",
            num_warmup_steps=self.scheduler_warmup_steps,
            name=self.scheduler_name,
        )
        return TrainingPreset(adam_settings(self), schedule)

    def check_lengths(self) -> None:
        """Refuse more actions than the horizon holds, or more denoising steps than were trained."""
        longest = self.horizon - self.n_obs_steps + 1
        if not 1 <= self.n_action_steps <= longest:
            raise UsageError(
                f"n_action_steps is {self.n_action_steps} (choose 1-{longest}: horizon "
                f"{self.horizon} less the {self.n_obs_steps - 1} past steps)",
                code="policy.out-of-range",
            )
        if self.num_inference_steps is not None:
            up_to(self.num_train_timesteps).check("num_inference_steps", self.num_inference_steps)


class CosineMixin:
    """A policy trained by AdamW with a warm-up and a cosine decay of the learning rate."""

    def training_preset(self) -> TrainingPreset:
        """Return AdamW with a warm-up and a cosine decay."""
        return cosine_preset(self)


class RtcMixin:
    """A policy that supports real-time chunking."""

    rtc_config: dict[str, Any] | None

    @property
    def is_stateful(self) -> bool:
        """Whether an episode keeps state: with real-time chunking, the rest of the last chunk."""
        return read_rtc(self.rtc_config) is not None


RTC_HELP = "real-time chunking (RTC), as {enabled: true, execution_horizon: 10}"


@dataclass(frozen=True)
class RtcConfig:
    """LeRobot's fields of ``rtc_config``."""

    enabled: bool = True
    mode: Literal["guided"] = "guided"
    prefix_attention_schedule: Literal["ZEROS", "ONES", "LINEAR", "EXP"] = "LINEAR"
    """Decay of the guidance weights after the inference delay."""
    max_guidance_weight: float = 10.0
    execution_horizon: int = 10
    """Step from which the old chunk has no influence."""
    debug: bool = False
    debug_maxlen: int = 100


def read_rtc(raw: Mapping[str, Any] | None) -> RtcConfig | None:
    """Decode ``rtc_config``; None if real-time chunking is off."""
    if raw is None:
        return None
    known = RtcConfig.__dataclass_fields__
    for name in raw:
        if name not in known:
            raise UsageError(
                f"rtc_config has no {name!r} (it has {', '.join(known)})",
                code="policy.unknown-field",
            )
    try:
        rtc = msgspec.convert(dict(raw), RtcConfig, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"rtc_config: {error}", code="policy.invalid-value") from None
    Limits(0, 1e6, above=True).check("rtc_config: max_guidance_weight", rtc.max_guidance_weight)
    Limits(0, 100_000).check("rtc_config: execution_horizon", rtc.execution_horizon)
    return rtc if rtc.enabled else None


def with_interface_sizes(
    interface: Interface, config: ConfigT, renames: Mapping[str, str], use: ConfigUse
) -> ConfigT:
    """Return ``config`` with the interface's image sizes; for training also state and action."""
    fitted = adopt_feature_sizes(config.features, interface, renames, use)
    outputs = {ACTION: fitted.pop(ACTION)}
    made = replace(config, input_features=fitted, output_features=outputs)
    made.validate()
    return made


class ImageSizeFreeMixin:
    """Part of a ``CheckpointConfig`` whose policy accepts images of any size."""

    def for_interface(
        self, interface: Interface, renames: Mapping[str, str], use: ConfigUse
    ) -> Self:
        """Accept images of any size, and in training states and actions of any length too."""
        config: Any = self
        fitted: Self = with_interface_sizes(interface, config, renames, use)
        return fitted


class VlaConfig(ImageSizeFreeMixin, ChunkMixin, CosineMixin, RtcMixin, CheckpointConfig):
    """Config of a vision-language-action model in the manner of pi0; families add the fields."""

    @property
    def language_conditioned(self) -> bool:
        """Always True: the prompt contains the instruction."""
        return True

    def validate(self) -> None:
        """Also check inputs, their padded sizes and the chunk."""
        super().validate()
        read_rtc(self.rtc_config)
        check_one_observation(self)
        self.check_chunk()
        require_inputs(self, state=True, camera=True)
        check_padded_sizes(self)


@dataclass
class LanguageConfig(CheckpointConfig):
    """Config of a policy with tokenized instructions; weights keep their file's dtype.

    Its ``processing`` adds a ``Tokenize`` step to the usual ones.
    """

    dtype: str | None = field(
        default=None,
        metadata=run_flag(
            "dtype of weights and activations: float32, bfloat16 or float16", "the checkpoint's"
        )
        | EVALUATION_ONLY,
    )

    @property
    def language_conditioned(self) -> bool:
        """Whether the policy needs an instruction: always."""
        return True
