"""Optimisers and learning-rate schedules, from a policy's preset and the flags.

Multipliers of the learning rate at step i (0-based), with w warm-up steps of N in all:

    diffuser cosine            i/w, then (1 + cos(pi (i-w)/(N-w))) / 2
    diffuser linear            i/w, then (N-i)/(N-w)
    constant_with_warmup       i/w, then 1
    cosine_annealing_...       as diffuser cosine
    vqbet                      1 while the VQ-VAE trains (V steps), then cosine over i-V, still of N
    cosine_decay_with_warmup   1/(w+1) rising to 1, then a cosine measured from step 0 down to
                               decay_lr/peak_lr: a small drop at the end of the warm-up. If N is
                               less than the decay steps, both are shortened in proportion.
    warmup_stable_decay        min(1, i/w, (N-i)/d) with d decay steps: with more steps (--resume)
                               the decay moves back. It is linear: a cosine would stay near the
                               constant rate for its first steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from proctor.errors import UsageError, did_you_mean
from proctor.policies.lerobot.config.families import optimizer_groups
from proctor.policies.lerobot.config.presets import (
    GROUP_FIELDS,
    MAY_BE_NULL,
    OPTIMIZERS,
    SCHEDULES,
    SKIP_FACTOR,
    WARMUP_STABLE_DECAY,
    XVLA_ADAMW,
    OptimizerSettings,
    ScheduleSettings,
    TrainingPreset,
    check_non_negative,
    given_fields,
    shared_schedule,
    shared_settings,
)
from proctor.policies.runtime.network import LR_FLAG, LR_MULTIPLIER, Network
from proctor.training.data.sharding import full_tensor

Multiplier = Callable[[int], float]
_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    XVLA_ADAMW: torch.optim.AdamW,
    "multi_adam": torch.optim.Adam,
}
_MULTI_ADAM = {"betas": (0.9, 0.999), "eps": 1e-5}
"""Defaults of a parameter group."""
_OF_SOFT_PROMPTS = ("soft_prompt_lr_scale", "soft_prompt_warmup_lr_scale")
OTHER = "other"


@dataclass(frozen=True)
class OptimizationSettings:
    """Optimiser and schedule with all fields resolved."""

    optimizer: dict[str, Any]
    schedule: dict[str, Any] | None

    @property
    def clip_norm(self) -> float:
        """Maximum gradient norm; infinity disables clipping."""
        return float(self.optimizer["grad_clip_norm"]) or math.inf

    @property
    def skip_factor(self) -> float:
        """Gradient norm above which an update is skipped, as a multiple of its average; 0: off."""
        return float(self.optimizer.get(SKIP_FACTOR, 0.0))

    @property
    def notes(self) -> list[str]:
        """Notes if peak and final learning rate differ from the schedule's own fields."""
        rate, schedule = self.optimizer["lr"], self.schedule or {}
        peak = schedule.get("peak_lr", rate)
        if peak == rate:
            return []
        last = rate * schedule["decay_lr"] / peak
        return [
            f"the learning rate rises to {rate:g} (--optimizer.lr) and decays to {last:g}: "
            f"--scheduler.peak_lr={peak:g} and .decay_lr={schedule['decay_lr']:g} set the ratio"
        ]

    @property
    def separate(self) -> bool:
        """Whether checkpoints store one optimiser per group, as LeRobot's multi_adam does."""
        return bool(self.optimizer["type"] == "multi_adam")


def resolve(
    preset: TrainingPreset | None, optimizer: OptimizerSettings, schedule: ScheduleSettings
) -> OptimizationSettings:
    """Merge a policy's preset (None: unused) with the given settings, which take precedence."""
    start = preset or TrainingPreset(OptimizerSettings())
    kind = optimizer.type or start.optimizer.type
    if kind is None:
        raise UsageError(
            "--optimizer.type is missing; it is needed with --use_policy_training_preset=false "
            f"(choose from: {', '.join(OPTIMIZERS)})",
            code="flag.missing",
        )
    preset_of = given_fields(start.schedule or ScheduleSettings())
    planned = shared_schedule(preset_of, schedule.type) | given_fields(schedule)
    optimization = OptimizationSettings(
        _complete(
            "optimizer",
            shared_settings(given_fields(start.optimizer), kind, OPTIMIZERS)
            | given_fields(optimizer)
            | {"type": kind},
            OPTIMIZERS,
        ),
        _complete("scheduler", planned, SCHEDULES) if planned else None,
    )
    check_non_negative("optimizer", optimization.optimizer)
    check_non_negative("scheduler", optimization.schedule or {})
    if 0 < optimization.skip_factor <= 1:
        raise UsageError(
            f"--optimizer.{SKIP_FACTOR} must be above 1, or 0, got {optimization.skip_factor:g}",
            code="flag.out-of-range",
        )
    return optimization


def _complete(
    section: str, given: dict[str, Any], known: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    kind = given.get("type")
    if kind not in known:
        raise UsageError(
            f"--{section}.type is {kind!r} (choose from: {', '.join(known)})",
            code="flag.unknown-choice",
        )
    for name in given.keys() - known[kind].keys() - {"type", SKIP_FACTOR}:
        raise UsageError(
            f"--{section}.{name}: {kind} has no such field (it has {', '.join(known[kind])})",
            code="flag.unknown",
        )
    whole = {"type": kind} | known[kind] | given
    for name, value in whole.items():
        if value is None and name not in MAY_BE_NULL:
            raise UsageError(f"--{section}.{name} is missing; {kind} needs it", code="flag.missing")
    return whole


def param_groups(optimization: OptimizationSettings, network: Network) -> list[dict[str, Any]]:
    """Return the parameter groups of a network for torch's optimisers."""
    kind, settings = optimization.optimizer["type"], optimization.optimizer
    grouped_by_family = optimizer_groups(kind)
    if grouped_by_family is not None:
        made: list[dict[str, Any]] = grouped_by_family(settings, network)
        return made
    if kind == "multi_adam":
        return _by_part(settings, network)
    return [_rated(group, settings["lr"]) for group in network.parameter_groups()]


def own_rate_notes(settings: OptimizerSettings, kind: str, network: Network) -> list[str]:
    """Return a note for each parameter group whose rate a given --optimizer.lr does not change.

    ``kind`` is the optimiser's type; some make groups of their own.
    """
    if settings.lr is None or kind == "multi_adam" or optimizer_groups(kind) is not None:
        return []
    return [
        f"--optimizer.lr={settings.lr:g} does not change the rate of {len(group['params'])} tensors"
        f" with a rate of their own: {group['lr']:g} (--{group[LR_FLAG]})"
        for group in network.parameter_groups()
        if LR_FLAG in group and group["params"] and group["lr"] != settings.lr
    ]


def _rated(group: dict[str, Any], rate: float) -> dict[str, Any]:
    """Return a group with its learning rate, from its share of the base rate."""
    own = {name: value for name, value in group.items() if name not in (LR_MULTIPLIER, LR_FLAG)}
    return own | ({"lr": rate * group[LR_MULTIPLIER]} if LR_MULTIPLIER in group else {})


def _by_part(settings: dict[str, Any], network: Network) -> list[dict[str, Any]]:
    """Return one group for each part in ``optimizer_groups``, and one for the rest."""
    requested: dict[str, dict[str, Any]] = settings["optimizer_groups"]
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in (*requested, OTHER)}
    for name, parameter in network.named_parameters():
        part = name.partition(".")[0]
        groups[part if part in requested else OTHER].append(parameter)
    parts = dict.fromkeys(name.partition(".")[0] for name, _ in network.named_parameters())
    for name, fields in requested.items():
        if not groups[name]:
            hint = did_you_mean(name, parts) or f" (it has {', '.join(parts)})"
            raise UsageError(
                f"--optimizer.optimizer_groups: the network has no {name!r}{hint}",
                code="flag.unknown-choice",
            )
        for field in fields.keys() - set(GROUP_FIELDS):
            raise UsageError(
                f"--optimizer.optimizer_groups: {name} has no {field!r} (choose from: "
                f"{', '.join(GROUP_FIELDS)})",
                code="flag.unknown",
            )
    own = {"lr": settings["lr"], "weight_decay": settings["weight_decay"]} | _MULTI_ADAM
    made = [
        {"params": parameters, "name": name} | own | requested.get(name, {})
        for name, parameters in groups.items()
        if parameters
    ]
    for group in made:
        group["betas"] = tuple(group["betas"])
    return made


def make_optimizer(
    optimization: OptimizationSettings, groups: list[dict[str, Any]], *, fused: bool
) -> torch.optim.Optimizer:
    """Return the optimiser of ``groups``; ``fused`` updates all weights in one kernel."""
    settings = dict(optimization.optimizer)
    make = _CLASSES[settings.pop("type")]
    for name in ("grad_clip_norm", SKIP_FACTOR, "optimizer_groups", *_OF_SOFT_PROMPTS):
        settings.pop(name, None)
    if "betas" in settings:
        settings["betas"] = tuple(settings["betas"])
    try:
        return make(groups, **settings, fused=True if fused else None)
    except ValueError as error:  # torch's text: "Invalid beta parameter at index 0: 1.5"
        raise UsageError(f"--optimizer.*: {error}", code="flag.invalid-value") from None


def make_scheduler(
    optimization: OptimizationSettings, optimizer: torch.optim.Optimizer, steps: int
) -> LambdaLR | None:
    """Return the learning-rate scheduler; None for constant rates."""
    if optimization.schedule is None:
        return None
    return LambdaLR(optimizer, multiplier(optimization.schedule, steps))


def multiplier(schedule: dict[str, Any], steps: int) -> Multiplier:
    """Return the learning rate's multiplier as a function of the step."""
    made: Multiplier = _SCHEDULES[schedule["type"]](schedule, steps)
    return made


def _warm(step: int, warm_up: int) -> float:
    return step / max(1, warm_up)


def _cosine(progress: float, cycles: float = 0.5) -> float:
    return max(0.0, 0.5 * (1 + math.cos(2 * math.pi * cycles * progress)))


def _diffuser(schedule: dict[str, Any], steps: int) -> Multiplier:
    warm_up, after = schedule["num_warmup_steps"], schedule["name"]
    shapes: dict[str, Multiplier] = {
        "cosine": lambda i: _cosine((i - warm_up) / max(1, steps - warm_up)),
        "linear": lambda i: max(0.0, (steps - i) / max(1, steps - warm_up)),
        "constant_with_warmup": lambda i: 1.0,
    }
    if after not in shapes:
        raise UsageError(
            f"--scheduler.name is {after!r} (choose from: {', '.join(shapes)})",
            code="flag.unknown-choice",
        )
    return lambda i: _warm(i, warm_up) if i < warm_up else shapes[after](i)


def _constant(schedule: dict[str, Any], steps: int) -> Multiplier:
    warm_up = schedule["num_warmup_steps"]
    return lambda i: _warm(i, warm_up) if i < warm_up else 1.0


def _stable(schedule: dict[str, Any], steps: int) -> Multiplier:
    warm_up, decay = schedule["num_warmup_steps"], schedule["num_decay_steps"]

    def at(step: int) -> float:
        rising = _warm(step, warm_up) if step < warm_up else 1.0
        falling = (steps - step) / decay if step > steps - decay else 1.0
        return max(0.0, min(rising, falling))

    return at


def _vqbet(schedule: dict[str, Any], steps: int) -> Multiplier:
    warm_up, before = schedule["num_warmup_steps"], schedule["num_vqvae_training_steps"]

    def at(step: int) -> float:
        i = step - before
        if i < 0:
            return 1.0
        if i < warm_up:
            return _warm(i, warm_up)
        return _cosine((i - warm_up) / max(1, steps - warm_up), schedule["num_cycles"])

    return at


def _cosine_decay(schedule: dict[str, Any], steps: int) -> Multiplier:
    warm_up, decay = schedule["num_warmup_steps"], schedule["num_decay_steps"]
    if steps < decay:
        warm_up, decay = int(warm_up * steps / decay), steps
    floor: float = schedule["decay_lr"] / schedule["peak_lr"]

    def at(step: int) -> float:
        if step < warm_up:
            first = 1 / (warm_up + 1)
            rising: float = first + (1 - first) * step / warm_up
            return rising
        return (1 - floor) * _cosine(min(step, decay) / decay) + floor

    return at


_SCHEDULES: dict[str, Callable[[dict[str, Any], int], Multiplier]] = {
    "diffuser": _diffuser,
    "vqbet": _vqbet,
    "cosine_decay_with_warmup": _cosine_decay,
    "constant_with_warmup": _constant,
    WARMUP_STABLE_DECAY: _stable,
    "cosine_annealing_with_warmup": lambda schedule, steps: _diffuser(
        schedule | {"name": "cosine"}, steps
    ),
}


def clip_gradients(parameters: Iterable[nn.Parameter], norm: float) -> Tensor:
    """Clip the gradient norm to ``norm``; return the norm before clipping."""
    return full_tensor(nn.utils.clip_grad_norm_(parameters, norm))
