"""Training presets of policies: samples, optimiser and learning-rate schedule.

The records have the field names of LeRobot's files and need no torch. ``--optimizer.*`` and
``--scheduler.*`` override single fields of a preset. None: not set.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from proctor.errors import UsageError
from proctor.policies.base import flag

XVLA_ADAMW = "xvla-adamw"
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {
        "lr": 1e-3,
        "weight_decay": 0.0,
        "grad_clip_norm": 10.0,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
    },
    "adamw": {
        "lr": 1e-3,
        "weight_decay": 1e-2,
        "grad_clip_norm": 10.0,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
    },
    "sgd": {
        "lr": 1e-3,
        "weight_decay": 0.0,
        "grad_clip_norm": 10.0,
        "momentum": 0.0,
        "dampening": 0.0,
        "nesterov": False,
    },
    XVLA_ADAMW: {
        "lr": 1e-4,
        "weight_decay": 0.0,
        "grad_clip_norm": 10.0,
        "betas": [0.9, 0.99],
        "eps": 1e-8,
        "soft_prompt_lr_scale": 1.0,
        "soft_prompt_warmup_lr_scale": None,
    },
    "multi_adam": {
        "lr": 1e-3,
        "weight_decay": 0.0,
        "grad_clip_norm": 10.0,
        "optimizer_groups": {},
    },
}
"""Fields of each optimiser, in LeRobot's order, with LeRobot's defaults."""
MAY_BE_NULL = ("soft_prompt_warmup_lr_scale",)
"""Fields that may stay unset; other fields without a default are required."""
SKIP_FACTOR = "grad_skip_factor"
"""A field of every optimiser that LeRobot does not have; in files only if it is set."""
HYPERPARAMETERS = (
    *("lr", "weight_decay", "betas", "eps", "momentum", "dampening", "nesterov"),
    *("grad_clip_norm", SKIP_FACTOR),
)
"""Fields of an optimiser that a resumed training may change."""
GROUP_FIELDS = ("lr", "betas", "eps", "weight_decay")
"""Fields of a group in multi_adam's ``optimizer_groups``."""
ADAPTER_METHOD, ADAPTER_INITS = "LORA", ("gaussian", "orthogonal")
"""The supported adapter method, and the initialisations besides peft's default: those that do not
change the base policy."""
WARMUP_STABLE_DECAY = "warmup_stable_decay"
"""The schedule that LeRobot does not have; transformers has it by this name."""
SCHEDULES: dict[str, dict[str, Any]] = {
    "diffuser": {"num_warmup_steps": 0, "name": "cosine"},
    "vqbet": {"num_warmup_steps": None, "num_vqvae_training_steps": None, "num_cycles": 0.5},
    "cosine_decay_with_warmup": {
        "num_warmup_steps": None,
        "num_decay_steps": None,
        "peak_lr": None,
        "decay_lr": None,
    },
    "constant_with_warmup": {"num_warmup_steps": 1000},
    "cosine_annealing_with_warmup": {"num_warmup_steps": None},
    WARMUP_STABLE_DECAY: {"num_warmup_steps": 1000, "num_decay_steps": None},
}
_COSINE_DECAY = "cosine_decay_with_warmup"
_DIVIDE = ("num_decay_steps", "peak_lr")
"""Divisors of the cosine decay."""


def _flag(text: str, default_help: str = "the policy's preset") -> Any:
    """Declare a flag that overrides one field of the policy's preset."""
    return flag(None, text, default_help)


@dataclass(frozen=True)
class OptimizerSettings:
    """Settings of the optimiser."""

    help_group: ClassVar[str] = "Optimiser"

    type: str | None = _flag(f"optimiser: {', '.join(OPTIMIZERS)}")
    lr: float | None = _flag("learning rate of the optimiser")
    weight_decay: float | None = _flag("weight decay of the optimiser")
    grad_clip_norm: float | None = _flag("maximum gradient norm; 0: no clipping")
    grad_skip_factor: float | None = _flag(
        "skip updates whose gradient norm exceeds this multiple of its running "
        "average over 100 updates; 0: skip only NaN and infinity",
        "0",
    )
    betas: list[float] | None = _flag("betas of Adam, as [0.9,0.999]")
    eps: float | None = _flag("epsilon of Adam")
    momentum: float | None = _flag("momentum of SGD")
    dampening: float | None = _flag("dampening of SGD's momentum")
    nesterov: bool | None = _flag("use Nesterov momentum in SGD")
    soft_prompt_lr_scale: float | None = _flag(
        "xvla-adamw: learning rate of the soft prompts, as a multiple of lr"
    )
    soft_prompt_warmup_lr_scale: float | None = _flag(
        "xvla-adamw: learning rate of the soft prompts in the warm-up, as a multiple of lr",
        "soft_prompt_lr_scale",
    )
    optimizer_groups: dict[str, dict[str, float | list[float]]] | None = _flag(
        "multi_adam: settings by parameter group, as {backbone: {lr: 1e-5}}"
    )


@dataclass(frozen=True)
class ScheduleSettings:
    """Settings of the learning-rate schedule."""

    help_group: ClassVar[str] = "Learning-rate schedule"

    type: str | None = _flag(f"learning-rate schedule: {', '.join(SCHEDULES)}")
    num_warmup_steps: int | None = _flag("warm-up steps of the learning rate")
    name: str | None = _flag(
        "diffuser: schedule after the warm-up, cosine, linear or constant_with_warmup"
    )
    num_vqvae_training_steps: int | None = _flag(
        "vqbet: optimiser steps of the VQ-VAE phase, before the warm-up"
    )
    num_cycles: float | None = _flag("vqbet: number of cosine cycles")
    num_decay_steps: int | None = _flag(
        "cosine_decay_with_warmup: steps until decay_lr; warmup_stable_decay: last steps, in "
        "which the rate falls to 0"
    )
    peak_lr: float | None = _flag("cosine_decay_with_warmup: learning rate after the warm-up")
    decay_lr: float | None = _flag("cosine_decay_with_warmup: final learning rate")


@dataclass(frozen=True)
class SampleWindows:
    """Time steps of a training sample relative to its frame, and the frames that are used."""

    action_steps: range
    observation_steps: range | None = None
    """Steps relative to the frame, such as -1, 0; None: the frame alone, without a time axis."""
    reward_steps: range | None = None
    """Steps whose rewards are in the sample, as ``next.reward``; None: no rewards."""
    drop_last: int = 0
    """Frames at the end of every episode that no sample starts at."""


POSE_SIZE = 9
"""Numbers of an end-effector pose: a position and two rows of the rotation matrix."""


@dataclass(frozen=True)
class RelativeChunks:
    """Chunks of relative actions whose statistics a new policy needs, for each step."""

    horizon: int
    poses: tuple[int, ...] = ()
    """Dimensions of state and action at which a pose of 9 numbers starts."""


@dataclass(frozen=True)
class TrainingPreset:
    """A policy's default optimiser and schedule."""

    optimizer: OptimizerSettings
    schedule: ScheduleSettings | None = None


def adam_settings(
    fields: Any, kind: str = "adam", grad_clip_norm: float = 10.0
) -> OptimizerSettings:
    """Return the settings of Adam from a config's fields."""
    return OptimizerSettings(
        type=kind,
        lr=fields.optimizer_lr,
        weight_decay=fields.optimizer_weight_decay,
        grad_clip_norm=grad_clip_norm,
        betas=fields.optimizer_betas,
        eps=fields.optimizer_eps,
    )


def constant_preset(kind: str, lr: float, **changed: Any) -> TrainingPreset:
    """Return an optimiser with LeRobot's defaults but for ``changed``, at a constant rate."""
    return TrainingPreset(OptimizerSettings(type=kind, **OPTIMIZERS[kind] | {"lr": lr} | changed))


def cosine_preset(fields: Any, kind: str = "adamw") -> TrainingPreset:
    """Return AdamW with a warm-up and a cosine decay, from a config's fields."""
    schedule = ScheduleSettings(
        type="cosine_decay_with_warmup",
        num_warmup_steps=fields.scheduler_warmup_steps,
        num_decay_steps=fields.scheduler_decay_steps,
        peak_lr=fields.optimizer_lr,
        decay_lr=fields.scheduler_decay_lr,
    )
    return TrainingPreset(adam_settings(fields, kind, fields.optimizer_grad_clip_norm), schedule)


def shared_settings(
    preset: dict[str, Any], kind: str | None, known: Mapping[str, Collection[str]]
) -> dict[str, Any]:
    """Return the preset's fields that the requested type shares, if it is another type."""
    if kind is None or kind == preset.get("type"):
        return preset
    return {name: value for name, value in preset.items() if name in known.get(kind, ())}


def shared_schedule(schedule: dict[str, Any], kind: str | None) -> dict[str, Any]:
    """Return the fields of a schedule that the requested type shares, if it is another type.

    Decay steps are not shared: they count from step 0, or from the end.
    """
    shareable = {name: fields.keys() - {"num_decay_steps"} for name, fields in SCHEDULES.items()}
    return shared_settings(schedule, kind, shareable)


def check_non_negative(section: str, settings: dict[str, Any]) -> None:
    """Refuse negative or infinite values, and 0 where it is a divisor."""
    for name, value in settings.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float) and not 0 <= number < math.inf:
                raise UsageError(
                    f"--{section}.{name} must be a number from 0 on, got {number:g}",
                    code="flag.out-of-range",
                )
        if settings.get("type") == _COSINE_DECAY and name in _DIVIDE and value == 0:
            raise UsageError(f"--{section}.{name} must be above 0", code="flag.out-of-range")


def given_fields(settings: OptimizerSettings | ScheduleSettings) -> dict[str, Any]:
    """Return the fields that are set."""
    values = {f.name: getattr(settings, f.name) for f in fields(settings)}
    return {name: value for name, value in values.items() if value is not None}
