"""Read the steps of a checkpoint's pipeline; refuse unknown steps and unusable statistics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import msgspec
from torch import Tensor

from proctor.errors import UsageError
from proctor.features import Feature, NormMode
from proctor.policies.lerobot.config.families import family_steps, import_attribute
from proctor.policies.lerobot.config.feature_json import channels_first, decode_features
from proctor.policies.lerobot.processors.processors import NEEDED, Normalize, Stats
from proctor.policies.lerobot.processors.step import ProcessorStep, Tensors

_USUAL = "proctor.policies.lerobot.processors.processors"
_LANGUAGE = "proctor.policies.lerobot.tokenizer.language"
_RELATIVE = "proctor.policies.lerobot.processors.relative_actions"
_ROUNDING = 1e-5
"""Relative error of bounds that were averaged over episodes."""
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,100}")
KNOWN = {
    "rename_observations_processor": f"{_USUAL}:Rename",
    "to_batch_processor": f"{_USUAL}:ToBatch",
    "device_processor": f"{_USUAL}:ToDevice",
    "normalizer_processor": f"{_USUAL}:Normalize",
    "unnormalizer_processor": f"{_USUAL}:Unnormalize",
    "lerobot.processor.pipeline.IdentityProcessorStep": f"{_USUAL}:Identity",
    "tokenizer_processor": f"{_LANGUAGE}:Tokenize",
    "relative_actions_processor": f"{_RELATIVE}:RelativeActions",
    "absolute_actions_processor": f"{_RELATIVE}:AbsoluteActions",
}
"""Steps that several families use: LeRobot's names to module:ATTRIBUTE."""


def build_step(raw: Any, state: Tensors, where: str) -> ProcessorStep:
    """Make a step from its JSON object and the tensors of its state file."""
    name = raw.get("registry_name") or raw.get("class") if isinstance(raw, dict) else None
    known = KNOWN if isinstance(name, str) and name in KNOWN else KNOWN | family_steps()
    if not isinstance(name, str) or name not in known:
        raise UsageError(
            f"{where}: unknown step {name!r} (known: {', '.join(known)})",
            code="checkpoint.unknown-step",
        )
    config = raw.get("config") or {}
    if not isinstance(config, dict):
        raise UsageError(
            f"{where}, {name}: its config is not a JSON object", code="checkpoint.invalid-pipeline"
        )
    kind: type[ProcessorStep] = import_attribute(known[name])
    ours = {f.name for f in fields(kind) if f.metadata.get("saved", True)}
    for key in config:
        if key not in ours:
            raise UsageError(
                f"{where}, {name}: unknown setting {key!r}",
                code="checkpoint.unsupported-step",
            )
    try:
        step = msgspec.convert(decode_features(config, ("features",)), kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise UsageError(f"{where}, {name}: {error}", code="checkpoint.invalid-pipeline") from None
    step = replace(step, **_folders(raw.get("artifacts"), kind, f"{where}, {name}"))
    step.check(f"{where}, {name}")
    if isinstance(step, Normalize):
        if not 0 <= step.eps <= 1:
            raise UsageError(
                f"{where}, {name}: eps is {step.eps:g} (choose 0 to 1)",
                code="checkpoint.invalid-pipeline",
            )
        step = replace(step, stats=group_stats(state))
        check_stats(step, where)
        return step
    return step.with_state(state, f"{where}, {name}")


def _folders(raw: Any, kind: type[ProcessorStep], where: str) -> dict[str, str]:
    """Return the checkpoint's folders with files of the step, by the step's fields."""
    try:
        folders = msgspec.convert(raw or {}, dict[str, str])
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{where}: artifacts: {error}", code="checkpoint.invalid-pipeline"
        ) from None
    for setting, folder in folders.items():
        if setting not in kind.artifacts or not _FOLDER.fullmatch(folder):
            raise UsageError(
                f"{where}: unknown artifact {setting!r} in {folder!r}",
                code="checkpoint.unsupported-step",
            )
    return {kind.artifacts[setting]: folder for setting, folder in folders.items()}


def group_stats(state: Tensors) -> Stats:
    """Return ``<feature>.<statistic>`` tensors as a table of statistics."""
    stats: Stats = {}
    for name, value in state.items():
        key, _, statistic = name.rpartition(".")
        stats.setdefault(key, {})[statistic] = value
    return stats


def check_stats(step: Normalize, where: str) -> None:
    """Refuse statistics that are missing, NaN, infinite (never set), or would turn values round."""
    for key, each in step.stats.items():
        for name, value in each.items():
            if value.is_complex():
                raise UsageError(
                    f"{where}: {key}.{name} holds complex numbers", code="stats.invalid"
                )
            if value.double().isnan().any():
                raise UsageError(f"{where}: {key}.{name} holds NaN", code="stats.invalid")
        for name in NEEDED[step.mode(key)]:
            if name not in each:
                raise UsageError(
                    f"{where}: {step.mode(key).value} needs {key}.{name}, which is missing",
                    code="stats.missing",
                )
            if each[name].double().isinf().any():
                raise UsageError(
                    f"{where}: {key}.{name} is infinite, so it was never set", code="stats.invalid"
                )
            _check_shape(f"{where}: {key}.{name}", each[name], step.features[key])
        _check_order(f"{where}: {key}", step.mode(key), each)


def _check_order(name: str, mode: NormMode, stats: Mapping[str, Tensor]) -> None:
    """Refuse a negative standard deviation, and an upper bound below the lower one."""
    if mode is NormMode.MEAN_STD and (stats["std"] < 0).any():
        raise UsageError(f"{name}.std is negative", code="stats.invalid")
    if mode is not NormMode.MEAN_STD and NEEDED[mode]:
        low, high = NEEDED[mode]
        rounding = _ROUNDING * stats[low].abs()
        if (stats[low] - stats[high] > rounding).any():
            raise UsageError(f"{name}.{low} is greater than {name}.{high}", code="stats.invalid")


def _check_shape(name: str, value: Tensor, feature: Feature) -> None:
    """Refuse a statistic whose shape does not broadcast to its feature."""
    found, wanted = list(value.shape), list(channels_first(feature))
    padded = [1] * (len(wanted) - len(found)) + found
    if len(padded) != len(wanted) or any(
        n not in (1, size) for n, size in zip(padded, wanted, strict=True)
    ):
        raise UsageError(
            f"{name} has shape {found}, which does not fit {wanted}", code="stats.shape-mismatch"
        )
