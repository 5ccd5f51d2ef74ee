"""Override fields of a checkpoint's config by flags: ``--policy.n_action_steps=8``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, get_type_hints

import msgspec

from proctor.errors import UsageError, did_you_mean
from proctor.fingerprint import ConfigUse, is_flag
from proctor.parsing import parse_text
from proctor.policies.lerobot.config.config import CheckpointConfig, ConfigT


def override(
    config: ConfigT, overrides: Mapping[str, Any], use: ConfigUse = ConfigUse.EVALUATION
) -> ConfigT:
    """Return ``config`` with the values of flags, validated again.

    Values may be text as typed ("8", "true", "{a: b}"). Flags that ``use`` does not need, such as
    learning rates in an evaluation, are ignored (see ``idle_overrides``).
    """
    names = [f.name for f in fields(config) if f.name != "type" and is_flag(f.metadata, use)]
    idle = idle_overrides(config, overrides, use)
    for name in overrides:
        if name not in names and name not in idle:
            raise UsageError(
                f"{config.type} has no --policy.{name}{did_you_mean(name, names)}",
                code="flag.unknown",
            )
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
        raise UsageError(f"--policy: {error}", code="flag.invalid-value") from None
    return changed


def idle_overrides(
    config: CheckpointConfig, overrides: Mapping[str, Any], use: ConfigUse = ConfigUse.EVALUATION
) -> list[str]:
    """Return the training flags among ``overrides``, which an evaluation ignores."""
    if use is not ConfigUse.EVALUATION:
        return []
    of_training = {f.name for f in fields(config) if f.metadata.get("only") is ConfigUse.TRAINING}
    return [name for name in overrides if name in of_training]


def _from_flag(kind: Any, name: str, value: Any) -> Any:
    """Parse a typed list or map; msgspec converts numbers and booleans."""
    try:
        return parse_text(kind, value) if isinstance(value, str) else value
    except ValueError as bad:
        raise UsageError(
            f"--policy.{name}: {value!r} is not valid YAML or JSON ({bad})",
            code="flag.invalid-value",
        ) from None
