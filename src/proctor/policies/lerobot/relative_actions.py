"""Actions that are told from where the robot is: made so before the network, undone behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from proctor.errors import UsageError
from proctor.features import ACTION, STATE
from proctor.policies.lerobot.step import OURS, ProcessorStep, Tensors


@dataclass(frozen=True)
class RelativeActions(ProcessorStep):
    """Subtract the state, number by number, from every action of a chunk; grippers stay."""

    registry_name: ClassVar[str] = "relative_actions_processor"
    enabled: bool = False
    exclude_joints: list[str] = field(default_factory=list)
    action_names: list[str] | None = None

    def __call__(self, tensors: Tensors) -> Tensors:
        """Change the actions, where there are any: only samples to learn from have them."""
        if not self.enabled or ACTION not in tensors or STATE not in tensors:
            return tensors
        actions = tensors[ACTION]
        return {**tensors, ACTION: actions - self.offset(actions, tensors[STATE])}

    def offset(self, actions: Tensor, state: Tensor) -> Tensor:
        """Return what is added to relative ``actions`` [B, T, A] at ``state`` [B, S]: [B, 1, A].

        Numbers of an action beyond the state's, and joints that are excluded, have none.
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
        """Return which numbers are relative."""
        return {
            "enabled": self.enabled,
            "exclude_joints": self.exclude_joints,
            "action_names": self.action_names,
        }


@dataclass(frozen=True)
class AbsoluteActions(ProcessorStep):
    """Add the state that a chunk was asked for at to each of its actions.

    LeRobot adds the state of the moment that an action is played in, though it was learnt from the
    one that the chunk begins at; the two are the same for a chunk's first action only.
    """

    registry_name: ClassVar[str] = "absolute_actions_processor"
    enabled: bool = False
    relative: RelativeActions | None = field(default=None, metadata=OURS)

    @property
    def needs(self) -> tuple[str, ...]:
        """The state, where it does anything."""
        return (STATE,) if self.enabled else ()

    def __call__(self, tensors: Tensors) -> Tensors:
        """Change the actions."""
        if not self.enabled:
            return tensors
        assert self.relative is not None, "a pipeline is put after the one before the network"
        actions = tensors[ACTION]
        return {**tensors, ACTION: actions + self.relative.offset(actions, tensors[STATE])}

    def config(self) -> dict[str, Any]:
        """Return whether it does."""
        return {"enabled": self.enabled}

    def inverse_of(self, earlier: Sequence[ProcessorStep]) -> ProcessorStep:
        """Return the step with the one that it undoes.

        Raises:
            UsageError: there is none.
        """
        found = [step for step in earlier if isinstance(step, RelativeActions) and step.enabled]
        if self.enabled and not found:
            raise UsageError(
                f"{self.registry_name} is enabled, and before it (and the network) is no "
                f"{RelativeActions.registry_name} that is",
                code="checkpoint.invalid-pipeline",
            )
        return replace(self, relative=found[0]) if self.enabled else self
