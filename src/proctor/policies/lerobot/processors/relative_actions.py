"""Actions relative to the robot's state: converted by the preprocessor, undone after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from proctor.errors import UsageError
from proctor.features import ACTION, STATE
from proctor.policies.lerobot.config.config import ConfigT
from proctor.policies.lerobot.processors.processors import Pipeline
from proctor.policies.lerobot.processors.step import OURS, ProcessorStep, Tensors, saved_fields

RELATIVE_STATS = "relative_action"
"""Key of the statistics of relative actions: a row for each step of a chunk."""


@dataclass(frozen=True)
class RelativeActions(ProcessorStep):
    """Subtract the state from every action of a chunk, except for excluded joints."""

    registry_name: ClassVar[str] = "relative_actions_processor"
    enabled: bool = False
    exclude_joints: list[str] = field(default_factory=list)
    action_names: list[str] | None = None

    def __call__(self, tensors: Tensors) -> Tensors:
        """Make the actions relative; only training samples have actions."""
        if not self.enabled or ACTION not in tensors or STATE not in tensors:
            return tensors
        actions = tensors[ACTION]
        return {**tensors, ACTION: actions - self.offset(actions, tensors[STATE])}

    def offset(self, actions: Tensor, state: Tensor) -> Tensor:
        """Return the offset [B, 1, A] of relative ``actions`` [B, T, A] at ``state`` [B, S].

        It is 0 for excluded joints and for action dimensions beyond the state's.
        """
        size = actions.shape[-1]
        moved = torch.tensor(self._moved(size), dtype=actions.dtype, device=actions.device)
        known = state[..., :size].to(actions.device, actions.dtype)
        known = torch.nn.functional.pad(known, (0, size - known.shape[-1])) * moved
        return known[..., None, :] if actions.dim() == known.dim() + 1 else known

    def _moved(self, size: int) -> list[bool]:
        excluded = [name.lower() for name in self.exclude_joints if name]
        names = [name.lower() for name in self.action_names or ()][:size]
        moved = [not any(token in name for token in excluded) for name in names]
        return moved + [True] * (size - len(moved))

    def config(self) -> dict[str, Any]:
        """Return which action dimensions are relative."""
        return saved_fields(self)


@dataclass(frozen=True)
class AbsoluteActions(ProcessorStep):
    """Add the state at the time of the query to each action of the chunk.

    LeRobot adds the state at the time an action is executed, although training uses the state at
    the start of the chunk. The two agree only for a chunk's first action.
    """

    registry_name: ClassVar[str] = "absolute_actions_processor"
    enabled: bool = False
    relative: RelativeActions | None = field(default=None, metadata=OURS)

    @property
    def needs(self) -> tuple[str, ...]:
        """The state, if the step is enabled."""
        return (STATE,) if self.enabled else ()

    def __call__(self, tensors: Tensors) -> Tensors:
        """Make the actions absolute."""
        if not self.enabled:
            return tensors
        assert self.relative is not None, "inverse_of is called before use"
        actions = tensors[ACTION]
        return {**tensors, ACTION: actions + self.relative.offset(actions, tensors[STATE])}

    def config(self) -> dict[str, Any]:
        """Return whether the step is enabled."""
        return {"enabled": self.enabled}

    def inverse_of(self, earlier: Sequence[ProcessorStep]) -> ProcessorStep:
        """Return the step bound to the relative-actions step that it inverts."""
        found = [step for step in earlier if isinstance(step, RelativeActions) and step.enabled]
        if self.enabled and not found:
            raise UsageError(
                f"{self.registry_name} is enabled, but the preprocessor has no enabled "
                f"{RelativeActions.registry_name}",
                code="checkpoint.invalid-pipeline",
            )
        return replace(self, relative=found[0]) if self.enabled else self


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
