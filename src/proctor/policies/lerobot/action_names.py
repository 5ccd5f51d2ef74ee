"""What a dataset calls the numbers of an action, told to a policy that asks: grippers by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from proctor.policies.lerobot.config import ConfigT
from proctor.policies.lerobot.processors import Pipeline
from proctor.policies.lerobot.relative_actions import RelativeActions

_FIELD = "action_feature_names"


def naming_actions(config: ConfigT, names: Sequence[str] | None) -> ConfigT:
    """Return the config with ``names``, where it has a place for them and there are any."""
    if names is None or _FIELD not in {f.name for f in fields(config)}:
        return config
    told: dict[str, Any] = {_FIELD: list(names)}
    return replace(config, **told)


def following_names(
    before: Pipeline, after: Pipeline, names: Sequence[str] | None
) -> tuple[Pipeline, Pipeline]:
    """Return both pipelines as they are for actions of these names."""
    if names is None:
        return before, after
    steps = [
        replace(step, action_names=list(names)) if isinstance(step, RelativeActions) else step
        for step in before.steps
    ]
    before = replace(before, steps=tuple(steps))
    return before, after.after(before)
