"""Names of action dimensions from the dataset, for policies that exclude grippers by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from proctor.policies.lerobot.config import ConfigT
from proctor.policies.lerobot.processors import Pipeline
from proctor.policies.lerobot.relative_actions import RelativeActions

_FIELD = "action_feature_names"


def with_action_names(config: ConfigT, names: Sequence[str] | None) -> ConfigT:
    """Return the config with ``names`` as its ``action_feature_names``, if it has that field."""
    if names is None or _FIELD not in {f.name for f in fields(config)}:
        return config
    changed: dict[str, Any] = {_FIELD: list(names)}
    return replace(config, **changed)


def pipelines_with_action_names(
    before: Pipeline, after: Pipeline, names: Sequence[str] | None
) -> tuple[Pipeline, Pipeline]:
    """Return both pipelines with these names in their relative-actions step."""
    if names is None:
        return before, after
    steps = [
        replace(step, action_names=list(names)) if isinstance(step, RelativeActions) else step
        for step in before.steps
    ]
    before = replace(before, steps=tuple(steps))
    return before, after.inverse_of(before)
