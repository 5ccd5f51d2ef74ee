"""Fields of a checkpoint's config that flags change: ``--policy.n_action_steps=8``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, get_type_hints

import msgspec

from proctor.errors import UsageError, did_you_mean
from proctor.fingerprint import ConfigUse, is_flag
from proctor.parsing import parse_text
from proctor.policies.lerobot.config import CheckpointConfig, ConfigT


def override(
    config: ConfigT, overrides: Mapping[str, Any], use: ConfigUse = ConfigUse.EVALUATION
) -> ConfigT:
    """Return ``config`` with the values that flags gave, checked as a whole again.

    Values may still be text as typed ("8", "true", "{a: b}"). Those that are not of ``use``, as
    learning rates are not of an evaluation, are left out (see ``idle_overrides``).

    Raises:
        UsageError: no such field, a wrong type, or a value the other fields forbid.
    """
    names = [f.name for f in fields(config) if f.name != "type" and is_flag(f.metadata, use)]
    idle = idle_overrides(config, overrides, use)
    for name in overrides:
        if name not in names and name not in idle:
            raise UsageError(f"{config.type} has no --policy.{name}{did_you_mean(name, names)}")
    hints = get_type_hints(type(config))
    given = {
        name: _from_flag(hints[name], name, value)
        for name, value in overrides.items()
        if name not in idle
    }
    values = msgspec.to_builtins(config) | given
    try:
        changed = replace(msgspec.convert(values, type(config), strict=False))
        changed.validate()
    except (msgspec.ValidationError, ArithmeticError) as error:
        raise UsageError(f"--policy: {error}") from None
    return changed


def idle_overrides(
    config: CheckpointConfig, overrides: Mapping[str, Any], use: ConfigUse = ConfigUse.EVALUATION
) -> list[str]:
    """Return the names among ``overrides`` that say how a policy is trained, where it is not."""
    if use is not ConfigUse.EVALUATION:
        return []
    of_training = {f.name for f in fields(config) if f.metadata.get("only") is ConfigUse.TRAINING}
    return [name for name in overrides if name in of_training]


def _from_flag(kind: Any, name: str, value: Any) -> Any:
    """Return the list or map that was typed; msgspec sees to numbers and booleans."""
    try:
        return parse_text(kind, value) if isinstance(value, str) else value
    except ValueError as bad:
        raise UsageError(f"--policy.{name}: {value!r} is not valid YAML or JSON ({bad})") from None
