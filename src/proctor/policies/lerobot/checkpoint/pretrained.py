"""A trained policy from a checkpoint: ``--policy.path=DIR``, or the id of a Hub repository."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from proctor.errors import UsageError
from proctor.features import Interface
from proctor.fingerprint import LOCAL_PATH, PATH_KEYS, PRESENTATION
from proctor.policies.base import Policy, PolicyConfig, PolicyPlugin, flag


@dataclass
class PretrainedConfig(PolicyConfig):
    """The checkpoint's path; other --policy flags override fields of its config."""

    help_group: ClassVar[str] = "Checkpoint"
    help_groups: ClassVar[Mapping[str, str]] = {
        "Inference": "latency_steps",
    }

    type: str = "pretrained"
    path: str = flag(
        "", "checkpoint folder, or Hub id as user/name", "required", PRESENTATION | LOCAL_PATH
    )
    revision: str | None = flag(None, "branch, tag or commit on the Hub", "main", PRESENTATION)
    overrides: dict[str, Any] = flag(
        {},
        "fields of the checkpoint's config.json to change, as {n_action_steps: 8}; "
        "also as single flags, --policy.n_action_steps=8",
        "no changes",
        {PATH_KEYS: ("tokenizer",)} | PRESENTATION,
    )
    latency_steps: int | None = flag(
        None,
        "for serving: steps the robot executes during inference; an evaluation "
        "uses --eval.latency_steps",
        "0",
    )


def pin(config: PretrainedConfig) -> PretrainedConfig:
    """Return the config with links, such as checkpoints/last, resolved."""
    from proctor.policies.lerobot.checkpoint.location import pinned_path

    _require_path(config)
    path = pinned_path(config.path, config.revision)
    return config if path == config.path else replace(config, path=path)


def _require_path(config: PretrainedConfig) -> None:
    if not config.path:
        raise UsageError(
            "--policy.type=pretrained needs --policy.path=CHECKPOINT, a checkpoint folder or a "
            "Hub id",
            code="flag.missing",
        )


def check_checkpoint(config: PretrainedConfig) -> None:
    """Refuse a path that is neither a local checkpoint nor a Hub id, before anything is loaded.

    It also refuses a latency that is too long for the checkpoint's chunks.
    """
    from proctor.policies.lerobot.checkpoint.location import local_folder, locate

    _require_path(config)
    folder = local_folder(config.path, config.revision)
    if config.latency_steps:
        from proctor.policies.latency import check_config_latency
        from proctor.policies.lerobot.checkpoint.checkpoint import config_with_overrides

        folder = folder or locate(config.path, config.revision).folder
        check_config_latency(config_with_overrides(folder, _overrides(config)))


def make(config: PretrainedConfig, interface: Interface) -> Policy:
    """Load the checkpoint and check that it matches ``interface``."""
    check_checkpoint(config)
    from proctor.policies.lerobot.checkpoint.checkpoint import load_policy

    return load_policy(config.path, config.revision, _overrides(config), interface)


def _overrides(config: PretrainedConfig) -> dict[str, Any]:
    """Return the fields of the checkpoint's config that the run changes."""
    overrides = dict(config.overrides)
    if config.pad_to is not None:
        overrides.setdefault("pad_to", config.pad_to)
    if overrides.pop("latency_steps", None) is not None:
        raise UsageError(
            "--policy.overrides: latency_steps is not a field of a checkpoint's config",
            code="flag.unknown",
        )
    if config.latency_steps is not None:
        overrides["latency_steps"] = config.latency_steps
    return overrides


def trained_interface(config: PretrainedConfig) -> Interface:
    """Return the interface that the checkpoint was trained for."""
    check_checkpoint(config)
    from proctor.policies.lerobot.checkpoint.checkpoint import checkpoint_interface

    return checkpoint_interface(config.path, config.revision, config.overrides)


def local_checkpoint(config: PretrainedConfig) -> Path:
    """Return the checkpoint's folder."""
    from proctor.policies.lerobot.checkpoint.location import locate

    return locate(config.path, config.revision).folder


def image_inputs(config: PretrainedConfig) -> tuple[str, ...]:
    """Return the keys of images in config.json; none if the checkpoint is not on this machine."""
    from proctor.policies.lerobot.checkpoint.location import local_folder, read_json

    folder = local_folder(config.path, config.revision)
    inputs = {} if folder is None else read_json(folder / "config.json").get("input_features")
    listed = inputs.items() if isinstance(inputs, dict) else ()
    return tuple(
        key for key, one in listed if isinstance(one, dict) and one.get("type") == "VISUAL"
    )


PLUGIN = PolicyPlugin(
    config=PretrainedConfig,
    make=make,
    summary="a LeRobot checkpoint of any family here; --policy.path alone selects it",
    open_field="overrides",
    has_network=True,
    image_inputs=image_inputs,
    check_config=check_checkpoint,
    pin=pin,
    trained_interface=trained_interface,
    local_checkpoint=local_checkpoint,
)
