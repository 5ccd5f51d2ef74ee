"""Mixins for the configs of several policy families; each family declares the fields itself.

No torch here: `--help` reads configs.
"""

from __future__ import annotations

from typing import Any

from proctor.errors import UsageError
from proctor.policies.lerobot.presets import (
    SampleWindows,
    ScheduleSettings,
    TrainingPreset,
    adam_settings,
    cosine_preset,
)
from proctor.policies.lerobot.rtc_config import read_rtc

NOISE_SCHEDULE_CHOICES = {
    "noise_scheduler_type": ("DDPM", "DDIM"),
    "prediction_type": ("epsilon", "sample"),
    "beta_schedule": ("squaredcos_cap_v2", "linear", "scaled_linear", "sigmoid"),
}
"""Values of the noise schedule's fields that ``blocks/schedule.py`` implements."""


class ChunkMixin:
    """A policy that predicts ``chunk_size`` actions from one observation."""

    chunk_size: int
    n_action_steps: int

    def samples(self) -> SampleWindows:
        """Return one observation and the chunk of actions from there on."""
        return SampleWindows(action_steps=range(self.chunk_size))

    def check_chunk(self) -> None:
        """Refuse to execute more actions than a chunk has."""
        if not 1 <= self.n_action_steps <= self.chunk_size:
            raise UsageError(
                f"n_action_steps is {self.n_action_steps} (choose 1-{self.chunk_size}, the chunk)",
                code="policy.out-of-range",
            )


class DenoisingMixin:
    """A policy that denoises a horizon of actions, trained by Adam with a diffuser schedule."""

    horizon: int
    n_obs_steps: int
    n_action_steps: int
    num_train_timesteps: int
    num_inference_steps: int | None
    drop_n_last_frames: int | None
    optimizer_lr: float
    optimizer_betas: list[float]
    optimizer_eps: float
    optimizer_weight_decay: float
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
        steps = self.num_inference_steps
        if steps is not None and not 1 <= steps <= self.num_train_timesteps:
            raise UsageError(
                f"num_inference_steps is {steps} (choose 1-{self.num_train_timesteps})",
                code="policy.out-of-range",
            )


class CosineMixin:
    """A policy trained by AdamW with a warm-up and a cosine decay of the learning rate."""

    optimizer_lr: float
    optimizer_betas: list[float]
    optimizer_eps: float
    optimizer_weight_decay: float
    optimizer_grad_clip_norm: float
    scheduler_warmup_steps: int
    scheduler_decay_steps: int
    scheduler_decay_lr: float

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
