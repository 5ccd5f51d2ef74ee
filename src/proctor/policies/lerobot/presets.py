"""How a policy is trained, as its config says: on which samples, by which optimiser and schedule.

Records in the words of LeRobot's files, without torch. ``--optimizer.*`` and ``--scheduler.*``
change single fields of a policy's preset. None: not said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from proctor.errors import UsageError

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
"""What each has, in LeRobot's order, with LeRobot's defaults."""
MAY_BE_NULL = ("soft_prompt_warmup_lr_scale",)
"""Fields that say something by not being said; others without a default are needed."""
GROUP_FIELDS = ("lr", "betas", "eps", "weight_decay")
"""What multi_adam's ``optimizer_groups`` say of each group."""
ADAPTER_METHOD, ADAPTER_INITS = "LORA", ("gaussian", "orthogonal")
"""The one kind of adapter there is, and how a new one may begin beside peft's own way: as long as
it leaves the base policy alone."""
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
}
_DIVIDE = ("num_decay_steps", "peak_lr")


@dataclass(frozen=True)
class OptimizerSettings:
    """How weights follow their gradients."""

    type: str | None = field(default=None, metadata={"help": f"one of {', '.join(OPTIMIZERS)}"})
    lr: float | None = field(default=None, metadata={"help": "learning rate"})
    weight_decay: float | None = field(default=None, metadata={"help": "weight decay"})
    grad_clip_norm: float | None = field(
        default=None, metadata={"help": "gradients are scaled down to this norm; 0: never"}
    )
    betas: list[float] | None = field(default=None, metadata={"help": "of all Adams"})
    eps: float | None = field(default=None, metadata={"help": "of all Adams"})
    momentum: float | None = field(default=None, metadata={"help": "of SGD"})
    dampening: float | None = field(default=None, metadata={"help": "of SGD"})
    nesterov: bool | None = field(default=None, metadata={"help": "of SGD"})
    soft_prompt_lr_scale: float | None = field(
        default=None, metadata={"help": "of xvla-adamw: rate of the soft prompts, times lr"}
    )
    soft_prompt_warmup_lr_scale: float | None = field(
        default=None, metadata={"help": "of xvla-adamw: that rate instead, for a warm-up"}
    )
    optimizer_groups: dict[str, dict[str, float | list[float]]] | None = field(
        default=None,
        metadata={
            "help": "of multi_adam: parts of the network with an Adam of their own, as "
            "{backbone: {lr: 1e-5}}"
        },
    )


@dataclass(frozen=True)
class ScheduleSettings:
    """How the learning rate changes from step to step."""

    type: str | None = field(default=None, metadata={"help": f"one of {', '.join(SCHEDULES)}"})
    num_warmup_steps: int | None = field(default=None, metadata={"help": "steps of rising rate"})
    name: str | None = field(
        default=None, metadata={"help": "of diffuser: cosine, linear, constant_with_warmup"}
    )
    num_vqvae_training_steps: int | None = field(
        default=None, metadata={"help": "of vqbet: steps before the warm-up"}
    )
    num_cycles: float | None = field(default=None, metadata={"help": "of vqbet: cosine cycles"})
    num_decay_steps: int | None = field(
        default=None, metadata={"help": "of cosine_decay_with_warmup: steps until decay_lr"}
    )
    peak_lr: float | None = field(
        default=None, metadata={"help": "of cosine_decay_with_warmup: highest rate"}
    )
    decay_lr: float | None = field(
        default=None, metadata={"help": "of cosine_decay_with_warmup: last rate"}
    )


@dataclass(frozen=True)
class SampleWindows:
    """What a network is trained on: which steps around a frame, and from which frames."""

    action_steps: range
    observation_steps: range | None = None
    """Steps around the frame, as -1, 0; None: the frame alone, without an axis of time."""
    reward_steps: range | None = None
    """Steps whose rewards are learnt from, under ``next.reward``; None: none are."""
    drop_last: int = 0
    """Frames at the end of every episode that no sample begins at."""


@dataclass(frozen=True)
class TrainingPreset:
    """What a policy was designed to be trained with."""

    optimizer: OptimizerSettings
    schedule: ScheduleSettings | None = None


class AdamFields(Protocol):
    """The fields of a config that is trained by an Adam."""

    optimizer_lr: float
    optimizer_betas: list[float]
    optimizer_eps: float
    optimizer_weight_decay: float


class CosineFields(AdamFields, Protocol):
    """The fields of a config that is trained by AdamW under a cosine after a warm-up."""

    optimizer_grad_clip_norm: float
    scheduler_warmup_steps: int
    scheduler_decay_steps: int
    scheduler_decay_lr: float


def adam_settings(
    fields: AdamFields, kind: str = "adam", grad_clip_norm: float = 10.0
) -> OptimizerSettings:
    """Return the Adam that a config's fields say."""
    return OptimizerSettings(
        type=kind,
        lr=fields.optimizer_lr,
        weight_decay=fields.optimizer_weight_decay,
        grad_clip_norm=grad_clip_norm,
        betas=fields.optimizer_betas,
        eps=fields.optimizer_eps,
    )


def cosine_preset(fields: CosineFields, kind: str = "adamw") -> TrainingPreset:
    """Return AdamW, its rate rising and then falling as a cosine, as a config's fields say."""
    schedule = ScheduleSettings(
        type="cosine_decay_with_warmup",
        num_warmup_steps=fields.scheduler_warmup_steps,
        num_decay_steps=fields.scheduler_decay_steps,
        peak_lr=fields.optimizer_lr,
        decay_lr=fields.scheduler_decay_lr,
    )
    return TrainingPreset(adam_settings(fields, kind, fields.optimizer_grad_clip_norm), schedule)


def shared_settings(
    preset: dict[str, Any], kind: str | None, known: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return of a preset what the type that was asked for has too, where it is another one."""
    if kind is None or kind == preset.get("type"):
        return preset
    return {name: value for name, value in preset.items() if name in known.get(kind, {})}


def check_non_negative(section: str, settings: dict[str, Any]) -> None:
    """Refuse what is no number or below 0 (gradients would be turned round), and 0 to divide by.

    Raises:
        UsageError: naming the flag.
    """
    for name, value in settings.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float) and not 0 <= number < math.inf:
                raise UsageError(
                    f"--{section}.{name} must be a number from 0 on, got {number:g}",
                    code="flag.out-of-range",
                )
        if name in _DIVIDE and value == 0:
            raise UsageError(f"--{section}.{name} must be above 0", code="flag.out-of-range")


def given_fields(settings: OptimizerSettings | ScheduleSettings) -> dict[str, Any]:
    """Return the fields that are said, as a file has them."""
    values = {f.name: getattr(settings, f.name) for f in fields(settings)}
    return {name: value for name, value in values.items() if value is not None}
