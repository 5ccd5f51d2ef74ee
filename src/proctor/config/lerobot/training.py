"""LeRobot's train_config.json: read as settings, and written so that LeRobot can read it.

Flags that only LeRobot has are accepted where their value asks for what Proctor does anyway, and
refused with a reason otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from proctor import plugins
from proctor.config.sections.training import AcceleratorSettings, EmaSettings, ParallelismSettings
from proctor.config.training import TrainConfig
from proctor.errors import UsageError
from proctor.fingerprint import ConfigUse, flatten, is_flag
from proctor.lerobot_flags import (
    LerobotFlag,
    lerobot_flags,
    refuse_unsupported,
    split_lerobot_flags,
)
from proctor.policies.base import PolicyConfig
from proctor.policies.lerobot.config.config import CheckpointConfig, encode_config
from proctor.policies.lerobot.config.families import REWARD_MODELS

NEWEST_LEROBOT = "0.6"
_REWARD_MODEL = "reward_model"
"""LeRobot's section for a reward model, which a training has instead of a policy."""


_NO_FP16 = (
    "fp16 needs loss scaling, which skips updates on overflow; use bf16, which has the range of "
    "float32, or no"
)
UPLOAD_SETTINGS = tuple(
    f"policy.{name}"
    for name in ("push_to_hub", "repo_id", "private", "tags", "license", "eval_results")
)
"""Flags of the upload of a trained policy (training/publishing)."""
IDLE = (
    "job.",
    "policy.input_features",
    "policy.output_features",
    *(name for name in UPLOAD_SETTINGS if name != "policy.repo_id"),
    "policy.pretrained_path",
    "policy.pretrained_revision",
)
"""Names, or prefixes of names, without effect on training. The dataset defines the policy's
features, and training/checkpoints/publishing.py handles uploads."""
MAPS = ("rename_map", "dataset.image_transforms.tfs", "optimizer.optimizer_groups")
"""Settings that are maps, not sections. So is every map below ``policy``: its fields are flat."""
_COMPILED = {
    "policy.compile_model": "accelerator.compile.enabled",
    "policy.compile_mode": "accelerator.compile.mode",
}
"""Per-policy flags of LeRobot, and the common flag here."""
OLD_NAMES = {"eval_freq": "env_eval_freq"}


def upload_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the upload, nested or flat, by their flags; empty if it is off."""
    flat = _reward_model_as_policy(flatten(settings, _is_section))
    is_on = str(flat.get("policy.push_to_hub", "false")).lower() == "true"
    return {n: flat[n] for n in UPLOAD_SETTINGS if is_on and flat.get(n) is not None}


def drop_lerobot_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, nested or flat, without those that only LeRobot has."""
    kept: dict[str, Any] = {}
    compiled: dict[str, Any] = {}
    flat = _reward_model_as_policy(flatten(settings, _is_section))
    foreign = lerobot_flags("training") | _of_family(flat)
    for name, value in flat.items():
        name = OLD_NAMES.get(name, name)
        if isinstance(value, str) and value.lower() in ("null", "none"):  # as LeRobot reads flags
            value = None
        if name == "accelerator.mixed_precision" and str(value).lower() == "fp16":
            raise UsageError(f"--{name}={value}: {_NO_FP16}", code="flag.unsupported")
        if name in _COMPILED:
            compiled[_COMPILED[name]] = value
        elif name in foreign:
            refuse_unsupported(name, value, foreign)
        elif (section := name.partition(".")[0]) in foreign:  # a field of an unsupported section
            refuse_unsupported(section, value, foreign)
        elif not name.startswith(IDLE) and not _is_empty_section(name, value):
            kept[name] = value
    if str(compiled.get(_COMPILED["policy.compile_model"])).lower() == "true":
        kept = compiled | kept
    return kept


def _reward_model_as_policy(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat settings in which ``reward_model`` is ``policy``: both are trained alike."""
    asked = {n: v for n, v in given.items() if n.startswith(f"{_REWARD_MODEL}.") and v is not None}
    others = {n: v for n, v in given.items() if n.partition(".")[0] != _REWARD_MODEL}
    if not asked:
        return others
    kind, path = (asked.get(f"{_REWARD_MODEL}.{name}") for name in ("type", "path"))
    if kind not in REWARD_MODELS and (kind is not None or path is None):
        known = ", ".join(REWARD_MODELS)
        raise UsageError(
            f"--{_REWARD_MODEL}.type is {kind} (choose {known})"
            if kind
            else f"--{_REWARD_MODEL}.type is missing (choose {known})",
            code="plugin.unknown" if kind else "flag.missing",
        )
    chosen = [f"policy.{name}" for name in ("type", "path") if others.get(f"policy.{name}")]
    if chosen:
        raise UsageError(
            f"--{chosen[0]} and --{_REWARD_MODEL}: a training has one of them",
            code="flag.conflict",
        )
    others.pop("policy", None)
    renamed = {f"policy.{n.removeprefix(f'{_REWARD_MODEL}.')}": v for n, v in asked.items()}
    return others | renamed


def _of_family(given: Mapping[str, Any]) -> dict[str, LerobotFlag]:
    """Return the fields of a new policy's config that its training ignores."""
    kind, asked = given.get("policy.type"), _of_families().keys() & given.keys()
    if not asked or not isinstance(kind, str) or given.get("policy.path") is not None:
        return {}
    return _no_flags(plugins.find_policy(kind).config)


def checkpoint_overrides(
    overrides: Mapping[str, Any], config_class: type[CheckpointConfig]
) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a checkpoint's config that a training overrides, and notes on others."""
    asked = {f"policy.{name}": value for name, value in overrides.items()}
    own = {f"policy.{f.name}" for f in fields(config_class)}
    begins = {n: foreign for n, foreign in lerobot_flags("new_networks").items() if n in own}
    kept, notes = split_lerobot_flags(asked, _no_flags(config_class) | begins)
    return {name.removeprefix("policy."): value for name, value in kept.items()}, notes


def _of_families() -> dict[str, LerobotFlag]:
    return lerobot_flags("family_fields", "training_families")


def _no_flags(config_class: type[PolicyConfig]) -> dict[str, LerobotFlag]:
    """Return the fields that the training of this policy ignores."""
    known = fields(config_class)
    idle = {f"policy.{f.name}" for f in known if not is_flag(f.metadata, ConfigUse.TRAINING)}
    return {name: foreign for name, foreign in _of_families().items() if name in idle}


def _is_section(name: str, value: Mapping[str, Any]) -> bool:
    return name not in MAPS and not name.startswith(("policy.", f"{_REWARD_MODEL}."))


def _is_empty_section(name: str, value: Any) -> bool:
    return value is None and name in ("optimizer", "scheduler", "env", "wandb", "job", "peft")


def lerobot_train_config(
    config: TrainConfig, policy: CheckpointConfig, optimization: Mapping[str, Any]
) -> dict[str, Any]:
    """Return LeRobot's train_config.json; ``optimization`` has the optimizer and scheduler.

    Fields that older LeRobot versions refuse are omitted if they have those versions' behaviour.
    ``env`` is always omitted: LeRobot's benchmarks have other fields under the same names.
    """
    settings = config.as_dict()
    known = settings["dataset"].items()
    our_own = ("inputs", "image_size")
    dataset = {k: v for k, v in known if k not in our_own and not k.startswith("cache")}
    for name in ("balance_tasks", "paraphrase_tasks"):
        if not dataset[name]:  # LeRobot lacks this sampling: it must refuse a run that uses it
            del dataset[name]
    if dataset["exclude_episodes"] is None:
        del dataset["exclude_episodes"]
    dataset["repo_id"] = dataset["repo_id"] or Path(dataset["root"]).name
    of_eval = ("n_episodes", "batch_size", "use_async_envs")
    left_out = {
        "policy",
        "env",
        "eval",
        "video",
        "wandb",
        "save_minutes",
        "keep_last",
        "keep_best",
        "stop_on_divergence",
        "optimizer",
        "scheduler",
        "peft",
    }
    adapter = config.peft.to_lerobot()
    del settings["accelerator"]["cuda_graph"]  # ours
    usual = AcceleratorSettings(cuda_graph=config.accelerator.cuda_graph)
    left_out |= {"accelerator"} if config.accelerator == usual else set()
    left_out |= {"parallelism"} if config.parallelism == ParallelismSettings() else set()
    left_out |= {"ema"} if config.ema == EmaSettings() else set()
    return {
        **{name: value for name, value in settings.items() if name not in left_out},
        "dataset": dataset,
        "env": None,
        **_network_sections(policy),
        "eval": {name: settings["eval"][name] for name in of_eval},
        "rename_map": policy.rename_map or {},
        **({"peft": adapter} if adapter is not None else {}),
        **optimization,
    }


def _network_sections(policy: CheckpointConfig) -> dict[str, Any]:
    """Return the sections of train_config.json for a policy or a reward model."""
    written = json.loads(encode_config(policy, NEWEST_LEROBOT))
    if policy.type in REWARD_MODELS:
        return {"policy": None, _REWARD_MODEL: written}
    return {"policy": written}
